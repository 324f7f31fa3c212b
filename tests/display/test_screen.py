"""A screen that survives the loss of its terminal."""

import os

import pytest

from mtrl_cli.display.terminal import Screen, abilities


def test_a_broken_pipe_is_nobodys_failure() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        screen = Screen(stream)
        screen.line("lost")
        assert screen.lost
        screen.line("also lost")
        stream.write("written past the screen")
        stream.flush()


def test_what_an_encoding_lacks_is_replaced() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w", encoding="ascii") as stream:
        Screen(stream).line("reward ± 0.1")
    with os.fdopen(reader, encoding="ascii") as stream:
        assert stream.read() == "reward ? 0.1\n"


@pytest.mark.parametrize(
    ("terminal", "reflows"),
    [
        ({"TERM": "xterm-256color", "VTE_VERSION": "7600"}, True),
        ({"TERM": "screen-256color", "TMUX": "/tmp/tmux-0/default,1,0"}, True),
        ({"TERM": "xterm", "XTERM_VERSION": "XTerm(390)"}, False),
        ({"TERM": "screen", "STY": "123.pts-0.host"}, False),
    ],
)
def test_which_terminals_break_lines_anew(terminal: dict[str, str], reflows: bool) -> None:
    assert abilities(terminal).reflows is reflows
