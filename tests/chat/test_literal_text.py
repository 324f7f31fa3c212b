"""Words of the conversation never become control tokens; the template's markers always do."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from mtrl_cli.chat.renderer import RendererChat
from mtrl_cli.chat.tokenizer import JOINT, ChatTokenizer
from tests.chat.helpers import BET, CONTROLS, PLAY, chat, packaged, qwen_like

PIECES = st.sampled_from([*CONTROLS, "<", "<|", "|>", "im_end", "think>", "/", "\ufdd0", "\\ufdd0"])
WORDS = st.lists(PIECES | st.text(max_size=6), max_size=8).map("".join)
TOKENIZERS = st.sampled_from(["qwen-like", "packaged", "NFKC"])


def tokenizer(which: str) -> ChatTokenizer:
    if which == "NFKC":
        return qwen_like("NFKC")
    return packaged() if which == "packaged" else qwen_like()


def controls(tok: ChatTokenizer, ids: list[int]) -> list[str]:
    return [tok.convert_ids_to_tokens(i) for i in ids if i in tok.control_ids]


@given(WORDS, TOKENIZERS)
@settings(derandomize=True, max_examples=400, deadline=None)
def test_no_control_token_inside_words_and_the_text_is_unchanged(words: str, which: str) -> None:
    tok = tokenizer(which)
    ids = tok.encode("<|im_start|>user\n" + tok.literal(words) + "<|im_end|>")
    assert controls(tok, ids) == ["<|im_start|>", "<|im_end|>"]
    if which != "NFKC" and "\\ufdd0" not in words:  # that text is JSON's way to write the joint
        shown = words.replace(JOINT, "\ufffd")
        assert tok.decode(ids) == f"<|im_start|>user\n{shown}<|im_end|>"


@given(st.text(alphabet=st.characters(exclude_characters="<\ufdd0"), max_size=40), TOKENIZERS)
@settings(derandomize=True, max_examples=200, deadline=None)
def test_harmless_words_get_the_tokenizers_own_ids(words: str, which: str) -> None:
    if "\\ufdd0" in words or any(0xD800 <= ord(c) < 0xE000 for c in words):
        return
    tok = tokenizer(which)
    assert tok.encode(tok.literal(words)) == tok.backend.encode(words).ids


@given(st.lists(WORDS, min_size=1, max_size=3), st.sampled_from(["qwen-like", "packaged"]))
@settings(derandomize=True, max_examples=150, deadline=None)
def test_a_tool_result_adds_no_control_token(results: list[str], which: str) -> None:
    messages = [{"role": "tool", "content": words} for words in results]
    harmless = [{"role": "tool", "content": "x"} for _ in results]
    tok, talk = chat(which).tokenizer, chat(which)
    assert controls(tok, talk.bridge([], messages)) == controls(tok, talk.bridge([], harmless))


@given(WORDS, WORDS, st.sampled_from(["qwen-like", "packaged"]))
@settings(derandomize=True, max_examples=100, deadline=None)
def test_a_prompts_words_add_no_control_token(system: str, user: str, which: str) -> None:
    tok, talk = chat(which).tokenizer, chat(which)

    def prompt(system: str, user: str, description: str) -> list[str]:
        function = {**BET["function"], "description": description}
        tools = [PLAY, {"type": "function", "function": function}]
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        return controls(tok, talk.prompt(messages, tools))

    assert prompt(system, user, system) == prompt("s", "u", "d")


def test_fullwidth_brackets_do_not_normalize_into_a_marker() -> None:
    tok = qwen_like("NFKC")
    assert controls(tok, tok.encode(tok.literal("a ＜think＞ b"))) == []


def test_markers_split_over_content_parts_stay_words() -> None:
    parts = [{"type": "text", "text": "<|im_"}, {"type": "text", "text": "end|>"}]
    ids = chat().prompt([{"role": "user", "content": parts}], [])
    assert "<|im_end|><|im_end|>" in chat().tokenizer.decode(ids)
    assert controls(chat().tokenizer, ids).count("<|im_end|>") == 1


def test_an_authors_assistant_turn_keeps_its_tool_call_markers_and_no_turn_markers() -> None:
    words = "<tool_call>\n{}\n</tool_call><|im_end|>"
    messages = [{"role": "user", "content": "u"}, {"role": "assistant", "content": words}]
    found = controls(chat().tokenizer, chat().prompt(messages, []))
    assert found.count("<tool_call>") == 1
    assert found.count("<|im_end|>") == 2  # one a turn


@pytest.mark.parametrize("words", ["a\ud800b", "\udfff"])
def test_half_a_surrogate_pair_is_replaced_not_raised(words: str) -> None:
    ids = chat().bridge([], [{"role": "tool", "content": words}])
    assert "?" in chat().tokenizer.decode(ids)


def test_added_tokens_of_spaces_are_words() -> None:
    backend = Tokenizer.from_str(qwen_like().backend.to_str())
    backend.add_tokens([AddedToken("    ", normalized=False)])
    tok = ChatTokenizer(backend, "spaces")
    words = "a    b <think>"
    assert controls(tok, tok.encode(tok.literal(words))) == []
    assert tok.convert_tokens_to_ids("    ") in tok.encode(tok.literal(words))
    assert tok.decode(tok.encode(tok.literal(words))) == words


def test_ids_with_gaps_are_below_the_vocabulary() -> None:
    """As where cl100k ends a turn: id 100,265 of fewer tokens than that."""
    made = json.loads(qwen_like().backend.to_str())
    far = len(qwen_like()) + 20
    made["model"]["vocab"]["<|im_end|>"] = far
    for token in made["added_tokens"]:
        if token["content"] == "<|im_end|>":
            token["id"] = far
    gaps = RendererChat(ChatTokenizer(Tokenizer.from_str(json.dumps(made)), "gaps"))
    assert far in gaps.stop_ids
    assert gaps.vocabulary == far + 1
