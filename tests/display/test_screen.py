"""A screen that survives the loss of its terminal."""

import os

from mtrl_cli.display.terminal import Screen


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
