"""Prose is broken between words; what one copies is not, and a command as a shell reads it."""

import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtrl_cli.display.wrapping import Fact, cells, glued, laid_out, wrapped

COMMAND = "mtrl cancel 20261129-122135-a7aa --runs-dir=/data/runs --now"


def test_a_long_sentence_is_indented_from_its_second_line_on() -> None:
    assert wrapped("warning: the server is slow", 16, 4) == [
        "warning: the",
        "    server is",
        "    slow",
    ]
    assert wrapped("warning: the server is slow", None, 4) == ["warning: the server is slow"]
    assert wrapped("as wide as it is", 16, 4) == ["as wide as it is"]


def test_a_command_in_a_sentence_stays_whole() -> None:
    told = wrapped(f"what it held is returned by: {COMMAND} (at once)", 30, 4)
    assert told == ["what it held is returned by:", f"    {COMMAND}", "    (at once)"]
    assert wrapped(glued("one two three"), 5) == ["one two three"]


def test_paths_that_are_copied_are_never_broken() -> None:
    path = "/home/somebody/with a/rather/long/path"
    facts = [Fact("run", path, copied=True), Fact("kept", "step 12 is committed with its state")]
    told = [
        f"run        {path}",
        "kept       step 12 is committed with",
        "           its state",
    ]
    assert list(laid_out(facts, 36)) == told
    assert list(laid_out(facts, None))[1] == "kept       step 12 is committed with its state"


def test_a_secret_is_taken_out_before_a_break_could_hide_it() -> None:
    told = laid_out(
        [Fact("why", "it said: open sesame, twice")],
        30,
        lambda text: text.replace("open sesame", "***"),
    )
    assert list(told) == ["why        it said: ***, twice"]


@pytest.mark.parametrize(
    ("text", "wide"), [("abc", 3), ("二十一点", 8), ("é", 1), ("e\u0301", 1), ("±", 1)]
)
def test_columns_are_counted_as_a_terminal_does(text: str, wide: int) -> None:
    assert cells(text) == wide


@given(st.text(st.sampled_from("ab 点"), max_size=60), st.integers(1, 30), st.integers(0, 12))
def test_nothing_is_lost_and_only_single_words_are_too_long(
    text: str, width: int, indent: int
) -> None:
    lines = wrapped(text, width, indent)
    assert " ".join(lines).split() == text.split()
    assert all(cells(line) <= width or len(line.split()) == 1 for line in lines)


@pytest.mark.parametrize(
    "typed",
    [
        "mtrl cancel last",
        "python -m pip install 'mtrl-cli[e2b]'",
        "e2b sandbox kill sb-17",
        "kill -9 4711",
        "export E2B_MAX_CONNECTIONS=400",
    ],
)
def test_other_commands_of_a_hint_stay_whole(typed: str) -> None:
    told = wrapped(f"a hint in some words: {typed} (and some more words)", 30, 4)
    assert any(typed in line for line in told)


FOLDERS = ("/data/of somebody else/runs", "it's", "a$b`c`", 'x"y\\', "/short", "plain-" * 12)


def pasted(lines: list[str]) -> list[list[str]]:
    """The arguments that bash gives to each command."""
    show = "mtrl() { printf '%s\\0' \"$@\"; printf '\\0\\0'; }\n"
    done = subprocess.run(
        ["bash", "-c", show + "\n".join(lines)], capture_output=True, text=True, check=True
    )
    return [one.split("\0") for one in done.stdout.split("\0\0\0")[:-1]]


def test_a_command_that_is_too_long_runs_as_it_is_pasted() -> None:
    commands = [
        f"mtrl rollout {shlex.quote(f'conf={folder}/20261129-122135-a7aa')}"
        f" {shlex.quote(f'run.dir={folder}')} policy=a7aa@last --show 1"
        for folder in FOLDERS
    ]
    for width in (24, 60, 80, 140):
        lines: list[str] = []
        for command in commands:
            first, *others = laid_out([Fact("play it", command, copied=True)], width)
            lines += [first.removeprefix("play it    "), *others]
            assert all(
                cells(line) <= width or len(shlex.split(line.removesuffix(" \\"))) == 1
                for line in others
            )
        assert pasted(lines) == [shlex.split(command)[1:] for command in commands]
    whole = list(laid_out([Fact("play it", commands[0], copied=True)], None))
    assert whole == [f"play it    {commands[0]}"]


def test_an_argument_that_just_fits_stands_whole_in_its_line() -> None:
    told = f"mtrl rollout conf=/{'a' * 25} run.dir=/data"
    assert list(laid_out([Fact("play it", told, copied=True)], 40)) == [
        "play it    mtrl rollout \\",
        f"       conf=/{'a' * 25} \\",
        "       run.dir=/data",
    ]


def test_a_command_that_no_shell_would_read_is_left_whole() -> None:
    told = "mtrl show 'a7aa --runs-dir /data/of/somebody"
    assert list(laid_out([Fact("", told, copied=True)], 30)) == [" " * 11 + told]
