"""Checks, and what they find.

A check has a topic, a deadline, and topics that it needs: where one of those failed or was
skipped, it is skipped. It tells findings, one line each; what it raises is a failure. Nothing that
a check does ends the others, but for the user.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from mtrl_cli.errors import MtrlError
from mtrl_cli.rollout.ports import RolloutError
from mtrl_cli.rollout.settle import original


class State(StrEnum):
    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"
    SKIP = "SKIP"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    topic: str
    state: State
    says: str
    todo: str | None = None
    """What to do about it, where there is something."""


class Told(MtrlError):  # noqa: N818 - a finding, not a mistake
    """A failure, with what to do about it."""

    def __init__(self, says: str, todo: str) -> None:
        super().__init__(says)
        self.todo = todo


class Speaker:
    """What a check tells with."""

    def __init__(self, report: "Report", topic: str) -> None:
        self._report = report
        self._topic = topic

    def ok(self, says: str) -> None:
        self._report.add(Finding(self._topic, State.OK, says))

    def warn(self, says: str, todo: str | None = None) -> None:
        self._report.add(Finding(self._topic, State.WARN, says, todo))

    def fail(self, says: str, todo: str | None = None) -> None:
        self._report.add(Finding(self._topic, State.FAIL, says, todo))


Work = Callable[[Speaker], Awaitable[None]]


@dataclass(slots=True)
class Report:
    """The findings so far; ``tell`` hears of each as it is made."""

    tell: Callable[[Finding], None] = lambda finding: None
    findings: list[Finding] = field(default_factory=list)

    def add(self, finding: Finding) -> None:
        self.findings.append(finding)
        self.tell(finding)

    def bad(self, topic: str) -> State | None:
        """Whether a topic failed or was skipped."""
        states = {one.state for one in self.findings if one.topic == topic}
        return next((state for state in (State.FAIL, State.SKIP) if state in states), None)

    def skip(self, topic: str, why: str) -> None:
        self.add(Finding(topic, State.SKIP, why))

    async def check(
        self, topic: str, work: Work, *, seconds: float, needs: Sequence[str] = ()
    ) -> None:
        """Carry out one check; never raises what it finds.

        Args:
            seconds: its deadline. A thread that hangs is left behind.
        """
        for need in needs:
            if (state := self.bad(need)) is not None:
                self.skip(topic, f"{need} {'failed' if state is State.FAIL else 'was skipped'}")
                return
        speaker, deadline = Speaker(self, topic), asyncio.timeout(seconds)
        try:
            async with deadline:
                await work(speaker)
        except Told as told:
            speaker.fail(line(told), told.todo)
        except TimeoutError as error:
            if deadline.expired():
                speaker.fail(f"no end within {seconds:g} s", "see whether it hangs, or is slow")
            else:
                speaker.fail(line(error))
        except (MtrlError, RolloutError) as error:
            hint = getattr(error, "hint", None)
            speaker.fail(line(error), hint if isinstance(hint, str) else None)
        except Exception as error:
            speaker.fail(f"{type(error).__name__}: {line(error)}")


def line(error: BaseException) -> str:
    """An error's text in one line; of a group the first."""
    error = original(error)
    return " ".join(str(error).split()) or type(error).__name__
