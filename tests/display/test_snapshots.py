"""Whole screens, character by character, at 80 and at 140 columns and as lines.

After a change that is meant, ``python -m tests.display.test_snapshots`` writes them again: look at
the difference before it is committed.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from mtrl_cli.display.state import Stopping
from mtrl_cli.rollout.events import MemberFinished
from tests.display.test_presenters import ESCAPES, Watched, begun, stepped

HERE = Path(__file__).parent / "snapshots"


def _playing(width: int) -> str:
    watched = begun(Watched(width), groups=12)
    watched.see(MemberFinished(1, 0, "env_failure", None, 0, 0, 0, "sandbox gone"))
    watched.clock.now += 9
    return "\n".join(watched.frame())


def _step_over(width: int) -> str:
    return "\n".join(stepped(begun(Watched(width))).frame())


def _stopping(width: int) -> str:
    watched = begun(Watched(width))
    watched.presenter.stopping(Stopping(1, "Ctrl-C", watched.clock.now))
    watched.clock.now += 14
    return "\n".join(watched.frame())


def _plain() -> str:
    watched = stepped(begun(Watched(None)))
    watched.presenter.stopping(Stopping(1, "SIGTERM", watched.clock.now))
    assert not ESCAPES.search(watched.text)
    return watched.text.rstrip("\n")


SCREENS: Mapping[str, Callable[[], str]] = {
    f"{name}-{width}": lambda shown=shown, width=width: shown(width)
    for name, shown in (("playing", _playing), ("step-over", _step_over), ("stopping", _stopping))
    for width in (80, 140)
} | {"plain": _plain}


@pytest.mark.parametrize("name", SCREENS)
def test_a_screen_is_as_it_was(name: str) -> None:
    assert SCREENS[name]() == (HERE / f"{name}.txt").read_text(encoding="utf-8").rstrip("\n")


def test_every_screen_that_is_kept_is_compared() -> None:
    assert {file.stem for file in HERE.iterdir()} == set(SCREENS)


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    for name, shown in SCREENS.items():
        (HERE / f"{name}.txt").write_text(shown() + "\n", encoding="utf-8")
