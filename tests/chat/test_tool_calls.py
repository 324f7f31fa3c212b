"""Reading tool calls: what is wrong is told to the model, and nothing raises."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtrl_cli.chat.errors import ChatConfigError
from mtrl_cli.chat.startup import check_append_only
from mtrl_cli.chat.tools import ToolReader
from mtrl_cli.rollout.ports import ToolCall
from tests.chat.helpers import BET, PLAY, call, chat, packaged, qwen_like

TOOLS = (PLAY, BET)


def read(body: str) -> ToolCall:
    (only,) = chat().read(call(body), TOOLS).calls
    return only


def good(name: str, **arguments: object) -> str:
    return json.dumps({"name": name, "arguments": arguments})


@pytest.mark.parametrize("which", ["qwen-like", "packaged"])
def test_a_good_call(which: str) -> None:
    turn = chat(which).read(call(good("play", action="hit"), which), TOOLS)
    assert turn.calls == (ToolCall("play", {"action": "hit"}),)
    assert turn.text == ""


def test_words_around_a_call_are_its_text() -> None:
    ids = chat().tokenizer.encode("I hit.\n") + call(good("play", action="hit"))
    assert chat().read(ids, TOOLS).text == "I hit."


def test_two_calls_in_their_order() -> None:
    ids = call(good("bet", chips=2), end="") + call(good("play", action="stand"))
    assert [c.name for c in chat().read(ids, TOOLS).calls] == ["bet", "play"]


@pytest.mark.parametrize("words", ["", "I stand.", "{}", '{"name": "play"}'])
def test_no_call_is_an_answer(words: str) -> None:
    turn = chat().read(chat().tokenizer.encode(words), TOOLS)
    assert turn == type(turn)(words, ())


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ('{"name": "play"', "The tool call is not valid JSON. Call play("),
        ("hit", "The tool call is not valid JSON"),
        ("[]", "The tool call names no tool"),
        ("{}", "The tool call names no tool"),
        (good("pley", action="hit"), "There is no tool named 'pley'. Call play(action: "),
        ('{"name": 5, "arguments": {}}', "The tool's name must be a string"),
        ('{"name": ["play"], "arguments": {}}', "The tool's name must be a string"),
        ('{"name": "play", "arguments": "hit"}', "must be a JSON object, not a string"),
        (
            '{"name": "play", "arguments": "{\\"action\\": \\"hit\\"}"}',
            "must be a JSON object, not a string",
        ),
        ('{"name": "play", "arguments": [1]}', "must be a JSON object, not something else"),
        ('{"name": "play"}', "The argument 'action' is missing"),
        (good("play"), "The argument 'action' is missing"),
        (good("play", action="hit", why="x"), "There is no argument 'why'"),
        (good("play", move="hit"), "The argument 'action' is missing"),
        (good("play", action="fold"), "'fold' is not a value of the argument 'action'"),
        (good("play", action=1), "The argument 'action' has the wrong type"),
        (good("bet", chips="two"), "The argument 'chips' has the wrong type"),
        (good("bet", chips=0), "The argument 'chips' is wrong: 0 is less than the minimum of 1"),
        (good("bet", chips=1, on=[3]), "The argument 'on.0' has the wrong type"),
        ('{"name": "bet", "arguments": {"chips": NaN}}', "is not finite"),
        ('{"name": "bet", "arguments": {"chips": 1, "on": ["\\ud800"]}}', "surrogate pair"),
    ],
)
def test_a_bad_call_is_told_what_is_wrong_and_what_to_write(body: str, error: str) -> None:
    found = read(body)
    assert found.error is not None
    assert error in found.error
    assert "\n" not in found.error
    assert len(found.error) < 300
    assert "play(action" in found.error or "bet(chips" in found.error


def test_the_signature_shows_what_to_write() -> None:
    assert read(good("play")).error == (
        'The argument \'action\' is missing. Call play(action: "hit" | "stand")'
    )
    assert read(good("bet")).error == (
        "The argument 'chips' is missing. Call bet(chips: integer, on?: array)"
    )


def test_a_call_without_an_end_is_told_so_and_kept_in_the_text() -> None:
    ids = chat().tokenizer.encode('<tool_call>\n{"name": "play"}<|im_end|>')
    turn = chat().read(ids, TOOLS)
    assert turn.calls[0].error is not None
    assert turn.calls[0].error.startswith("The tool call has no end")
    assert turn.text == '{"name": "play"}'


@pytest.mark.parametrize(
    "body",
    [
        '{"name": "play", "arguments": ' + '{"a":' * 10_000 + "1" + "}" * 10_000 + "}",
        "[" * 10_000,
        '{"name": "bet", "arguments": {"chips": ' + "9" * 5_000 + "}}",
        good("play", action="x" * 1_000_000),
        good("x" * 1_000_000),
        good("play", action={"a": "b"}),
        '{"name": "bet", "arguments": {"on": ' + "[" * 40 + "]" * 40 + "}}",
    ],
    ids=["deep object", "deep list", "huge integer", "1 MB value", "1 MB name", "object", "deep"],
)
def test_hostile_calls_are_answered_shortly(body: str) -> None:
    found = read(body)
    assert found.error is not None
    assert len(found.error) < 400


@pytest.mark.parametrize("ids", [[], [10**9], [-1], [2**40]], ids=str)
def test_ids_of_no_token_do_not_raise(ids: list[int]) -> None:
    turn = chat().read(ids, TOOLS)
    assert all(found.error for found in turn.calls)


@given(st.lists(st.integers(0, len(qwen_like()) - 1), max_size=60))
@settings(derandomize=True, max_examples=300, deadline=None)
def test_no_sequence_of_tokens_raises(ids: list[int]) -> None:
    turn = chat().read(ids, TOOLS)
    for found in turn.calls:
        assert found.error is None or "\n" not in found.error


@given(st.lists(st.sampled_from([*range(540, 560), *range(628, 636), 100]), max_size=40))
@settings(derandomize=True, max_examples=200, deadline=None)
def test_no_sequence_of_markers_raises(ids: list[int]) -> None:
    assert len(packaged()) == 636
    chat("packaged").read(ids, TOOLS)


def test_an_open_thought_holds_no_call() -> None:
    ids = chat().tokenizer.encode("<think>I could ")
    assert chat().read(ids, TOOLS).calls == ()


def test_a_call_found_good_before_vouches_for_no_other() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    reader = ToolReader([{"function": {"name": "f", "parameters": schema}}])
    for _ in range(2):
        assert reader.call("f", {"n": 1}).error is None
        assert reader.call("f", {"n": True}).error is not None
        assert reader.call("f", {"n": "1"}).error is not None
        assert reader.call("g", {"n": 1}).error is not None


# --- tools that cannot be used ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ([{"type": "function", "function": {}}], "a tool has no name"),
        ([PLAY, PLAY], "two tools are named 'play'"),
        (
            [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}],
            "'f': its parameters must be a schema of type object",
        ),
        (
            [{"function": {"name": "f", "parameters": {"properties": {"a": {"type": "strng"}}}}}],
            "'f': its parameters are not a JSON schema",
        ),
    ],
)
def test_tools_are_checked_at_start_up(tools: list[dict[str, object]], message: str) -> None:
    with pytest.raises(ChatConfigError, match=message):
        ToolReader(tools)
    with pytest.raises(ChatConfigError, match=message):
        check_append_only(chat(), tools)


def test_a_reference_to_nowhere_is_answered_and_fetches_nothing() -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/x.json"}}}
    reader = ToolReader([{"function": {"name": "f", "parameters": schema}}])
    assert "could not be checked" in (reader.call("f", {"a": 1}).error or "")
