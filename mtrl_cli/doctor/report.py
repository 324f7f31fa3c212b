"""Checks, and what they find.

A check has a topic, a deadline, and other checks that it needs: where one of those failed or was
skipped, it is skipped. It tells findings, one line each; what it raises is a failure; what it
returns is for the checks that need it (`Found`). Nothing that a check does ends the others, but
for the user.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, TypeVar

from mtrl_cli.errors import MtrlError
from mtrl_cli.rollout.ports import RolloutError
from mtrl_cli.rollout.settle import original

T = TypeVar("T")

QUICK = 60.0
"""Seconds for a check that contacts nothing; importing a task may be slow."""


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
    """In one line; of a configuration with several mistakes a line more for each."""
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


class Absent(LookupError):  # noqa: N818 - a state, not a mistake
    """There is no value: the check failed or was skipped."""


@dataclass(frozen=True, slots=True)
class Found(Generic[T]):
    """What the check of a topic has returned, if it came to its end without a failure."""

    topic: str
    values: tuple[T, ...] = ()
    """The value, or nothing."""

    @property
    def value(self) -> T:
        """Raises: Absent."""
        if not self.values:
            raise Absent(f"nothing was found of {self.topic}")
        return self.values[0]

    def otherwise(self, other: T) -> T:
        """The value, or ``other`` where there is none."""
        return self.values[0] if self.values else other


@dataclass(slots=True)
class Report:
    """The findings so far; ``tell`` hears of each as it is made."""

    tell: Callable[[Finding], None] = lambda finding: None
    findings: list[Finding] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    """What was found beside the findings, for JSON."""

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
        self,
        topic: str,
        work: Callable[[Speaker], Awaitable[T]],
        *,
        seconds: float = QUICK,
        needs: Sequence[Found[Any]] = (),
    ) -> Found[T]:
        """Carry out one check; never raises what it finds.

        Args:
            seconds: its deadline. A thread that hangs is left behind.
            needs: the checks without which it is skipped. ``work`` may use their values.
        """
        for need in needs:
            if (state := self.bad(need.topic)) is not None:
                why = "failed" if state is State.FAIL else "was skipped"
                self.skip(topic, f"{need.topic} {why}")
                return Found(topic)
        speaker, deadline = Speaker(self, topic), asyncio.timeout(seconds)
        try:
            async with deadline:
                value = await work(speaker)
            if self.bad(topic) is None:
                return Found(topic, (value,))
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
        return Found(topic)


def line(error: BaseException) -> str:
    """An error's text in one line; of a group the first."""
    error = original(error)
    return " ".join(str(error).split()) or type(error).__name__
