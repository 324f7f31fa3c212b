"""The append-only rules of `RendererChat`: bridges, end markers, start-up refusals."""

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtrl_cli.chat.errors import ChatConfigError
from mtrl_cli.chat.renderer import RendererChat
from mtrl_cli.chat.startup import check_append_only
from mtrl_cli.chat.tokenizer import load_tokenizer
from mtrl_cli.rollout.ports import TemplateNotAppendOnly, UnsupportedContent
from tests.chat.helpers import PLAY, call, chat, packaged, qwen_like

IM_END = qwen_like().convert_tokens_to_ids("<|im_end|>")
ENDOFTEXT = qwen_like().convert_tokens_to_ids("<|endoftext|>")
THINK = qwen_like().convert_tokens_to_ids("<think>")
AFTER = (
    "\n<|im_start|>user\n<tool_response>\nCards: 5.\n</tool_response><|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
RESULT = [{"role": "tool", "content": "Cards: 5."}]

IDS = st.lists(st.integers(3, len(qwen_like()) - 7), max_size=30)
"""Ids that are no control token."""
ENDINGS = st.sampled_from([[], [IM_END], [ENDOFTEXT]])
RESULTS = st.lists(
    st.text(max_size=20).map(lambda text: {"role": "tool", "content": text}),
    min_size=1,
    max_size=3,
)


def test_the_prompt_is_qwens_template() -> None:
    ids = chat().prompt(
        [{"role": "system", "content": "Be."}, {"role": "user", "content": "Go"}], []
    )
    assert chat().tokenizer.decode(ids) == (
        "<|im_start|>system\nBe.<|im_end|>\n<|im_start|>user\nGo<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


def test_tools_are_listed_with_real_markers() -> None:
    ids = chat().prompt([{"role": "user", "content": "Go"}], [PLAY])
    text = chat().tokenizer.decode(ids)
    assert '\n{"type": "function", "function": {"name": "play",' in text
    assert text.index("<|im_start|>system") == 0
    assert ids.count(chat().tokenizer.convert_tokens_to_ids("<tool_call>")) == 2


@pytest.mark.parametrize(
    ("ending", "expected"),
    [([IM_END], AFTER), ([], "<|im_end|>" + AFTER), ([ENDOFTEXT], AFTER)],
    ids=["sampled", "missing", "the template's other end"],
)
def test_exactly_one_end_marker(ending: list[int], expected: str) -> None:
    completion = chat().tokenizer.encode("hello") + ending
    bridge = chat().bridge(completion, RESULT)
    assert chat().tokenizer.decode(bridge) == expected


def test_an_end_marker_in_the_middle_is_closed_again_at_the_end() -> None:
    completion = [IM_END, *chat().tokenizer.encode("hello")]
    assert chat().tokenizer.decode(chat().bridge(completion, RESULT)) == "<|im_end|>" + AFTER


def test_an_open_thought_is_bridged_not_refused_in_the_middle_of_a_run() -> None:
    bridge = chat().bridge([THINK, *chat().tokenizer.encode("hm"), IM_END], RESULT)
    assert chat().tokenizer.decode(bridge) == AFTER


def test_two_results_go_back_in_order() -> None:
    results = [{"role": "tool", "content": "one"}, {"role": "tool", "content": "two"}]
    text = chat().tokenizer.decode(chat().bridge([IM_END], results))
    assert text.index("one") < text.index("two")
    assert text.count("<tool_response>") == 2
    assert text.count("<|im_start|>user") == 1


def test_sampled_ids_are_not_merged() -> None:
    """``he`` + ``llo`` stay two ids, though the tokenizer would write ``hello`` as one."""
    he, llo = ([*map(qwen_like().convert_tokens_to_ids, word)] for word in ("he", "llo"))
    whole = qwen_like().encode("hello")
    assert len(whole) < len(he + llo)
    prompt = chat().prompt([{"role": "user", "content": "u"}], [])
    context = prompt + he + llo + chat().bridge(he + llo, RESULT)
    assert context[len(prompt) : len(prompt) + 5] == he + llo


@given(st.lists(st.tuples(IDS, ENDINGS, RESULTS), min_size=1, max_size=4))
@settings(derandomize=True, max_examples=200, deadline=None)
def test_a_bridge_equals_the_renderers_with_the_full_history(
    turns: list[tuple[list[int], list[int], list[dict[str, str]]]],
) -> None:
    talk = chat()
    renderer = talk._renderer
    history = talk.prompt([{"role": "user", "content": "u"}], [PLAY])
    for ids, ending, results in turns:
        completion = ids + ending
        literal = [
            {**result, "content": talk.tokenizer.literal(result["content"])} for result in results
        ]
        full = renderer.bridge_to_next_turn(history, completion, literal).token_ids
        bridge = talk.bridge(completion, results)
        assert history + completion + bridge == full
        markers = completion + bridge
        assert sum(token in talk.stop_ids for token in markers) == 2  # this turn's and the user's
        history = full


def test_stop_ids_begin_with_the_templates_own() -> None:
    assert chat().stop_ids == (IM_END, ENDOFTEXT)


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "video", "image"])
def test_other_media_are_refused_in_one_line(kind: str) -> None:
    parts = [{"type": "text", "text": "look"}, {"type": kind, kind: {"url": "x"}}]
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": parts}]
    with pytest.raises(UnsupportedContent, match=rf"^message 1 \(user\) holds '{kind}'; [^\n]+$"):
        chat().prompt(messages, [])
    with pytest.raises(UnsupportedContent, match="message 0"):
        chat().bridge([], [{"role": "tool", "content": parts}])


# --- start-up ---------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["qwen-like", "packaged"])
@pytest.mark.parametrize("thinking", [False, True])
def test_qwen3_is_accepted(which: str, thinking: bool) -> None:
    tok = packaged() if which == "packaged" else qwen_like()
    check_append_only(RendererChat(tok, options={"enable_thinking": thinking}), [PLAY])


def patched(monkeypatch: pytest.MonkeyPatch, bridge: object) -> RendererChat:
    talk = RendererChat(qwen_like())
    monkeypatch.setattr(talk._renderer, "bridge_to_next_turn", bridge)
    return talk


def test_a_template_that_renders_again_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = patched(monkeypatch, lambda before, completion, messages: None)
    with pytest.raises(TemplateNotAppendOnly, match="renders the history again"):
        check_append_only(talk)


def test_a_template_that_changes_the_history_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def rewrite(before: list[int], completion: list[int], messages: object) -> SimpleNamespace:
        return SimpleNamespace(token_ids=[*before, *completion[1:], IM_END, 5, 6, 7])

    with pytest.raises(TemplateNotAppendOnly, match="'qwen3'"):
        check_append_only(patched(monkeypatch, rewrite))


def test_a_template_that_counts_the_turns_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def count(before: list[int], completion: list[int], messages: object) -> SimpleNamespace:
        return SimpleNamespace(token_ids=[*before, *completion, IM_END, 3 + before.count(IM_END)])

    with pytest.raises(TemplateNotAppendOnly, match="depends on the turns before"):
        check_append_only(patched(monkeypatch, count))


def test_a_renderers_wrong_option_is_one_line() -> None:
    with pytest.raises(ChatConfigError, match=r"^renderer 'qwen3' cannot use [^\n]*colour[^\n]*$"):
        RendererChat(qwen_like(), options={"colour": "red"})


def test_an_unknown_renderer_is_named_with_the_nearest() -> None:
    with pytest.raises(
        ChatConfigError, match="renderer 'qwen-3' does not exist: did you mean 'qwen3"
    ):
        RendererChat(qwen_like(), "qwen-3")


def test_a_renderer_whose_tokens_are_missing_is_refused_in_one_line() -> None:
    with pytest.raises(ChatConfigError, match=r"^renderer 'llama-3' cannot use tokenizer [^\n]+$"):
        RendererChat(qwen_like(), "llama-3")


def test_a_missing_tokenizer_says_what_to_write() -> None:
    with pytest.raises(ChatConfigError, match=r"mtrl-tiny.*write the path of a tokenizer\.json"):
        load_tokenizer("no-such")


def test_call_helper_is_read_back() -> None:
    completion = call('{"name": "play", "arguments": {"action": "hit"}}')
    assert chat().read(completion, [PLAY]).calls[0].name == "play"


def test_a_prompt_is_its_own_list_and_follows_the_tools() -> None:
    messages = [{"role": "user", "content": "u"}]
    tools = [PLAY]
    first = chat().prompt(messages, tools)
    expected = list(first)
    first.append(1)
    assert chat().prompt(messages, tools) == expected
    assert chat().prompt(messages, []) != expected
    assert chat().prompt(messages, [PLAY]) == expected
    assert chat().prompt([{"role": "user", "content": "v"}], tools) != expected
