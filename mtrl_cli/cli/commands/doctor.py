"""``mtrl doctor``: one line for each finding, with what to do about it; exit code 1 on a FAIL."""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from mtrl_cli.cli.failures import Teller
from mtrl_cli.cli.running.session import LINGER, leave_after
from mtrl_cli.cli.running.signals import INTERRUPTED, Signals
from mtrl_cli.config.compose import Composed, compose
from mtrl_cli.display.terminal import Screen, claim_stdout
from mtrl_cli.display.text import harmless
from mtrl_cli.doctor.examine import examine, unusable
from mtrl_cli.doctor.report import Finding, Report, State
from mtrl_cli.errors import MtrlError
from mtrl_cli.runs.stop import StopRequest


def consult(
    overrides: Sequence[str],
    config_dirs: Sequence[Path],
    teller: Teller,
    *,
    trains: bool,
    as_json: bool,
) -> int:
    """Check what the experiment needs; the exit code."""
    # What an environment prints must not stand within the object.
    screen = Screen(claim_stdout() if as_json else sys.stdout)

    def tell(finding: Finding) -> None:
        if not as_json:
            for line, indent in _lines(finding):
                screen.prose(harmless(teller.redact(line)), indent)

    report = Report(tell)

    def conclude() -> int:
        counts = Counter(finding.state for finding in report.findings)
        told = _object(report, counts) if as_json else _summary(counts)
        screen.line(teller.redact(told))
        return 1 if counts[State.FAIL] else 0

    try:
        composed = compose(None, list(overrides), list(config_dirs))
    except MtrlError as error:
        unusable(report, error)
        return conclude()
    teller.concerns(composed)
    with asyncio.Runner() as runner:
        stopped = _examined(runner, composed, report, trains)
        code = conclude() if stopped is None else stopped
        leave_after(LINGER, code)
    return code


def _examined(
    runner: asyncio.Runner, composed: Composed, report: Report, trains: bool
) -> int | None:
    """Carry out the examination; the exit code of a user's stop, None without one."""
    signals = Signals(last_words=lambda: "aborted; mtrl runs shows what may be left")

    async def work() -> None:
        stop = StopRequest(signals.abort)
        with signals.handled(stop):
            await examine(composed, report, stop, trains=trains)

    try:
        runner.run(work())
    except asyncio.CancelledError:
        return signals.code or INTERRUPTED
    return None


def _lines(finding: Finding) -> Iterator[tuple[str, int]]:
    """Each with the columns by which its rest is indented, if it is too long."""
    says, *more = finding.says.split("\n")
    yield f"{finding.state.value:<4} {finding.topic:<14} {says}", 20
    yield from ((f"{'':<20}{line}", 22) for line in more)
    if finding.todo is not None:
        yield f"{'':<19} → {finding.todo}", 22


def _summary(counts: "Counter[State]") -> str:
    return ", ".join(f"{counts[state]} {state.value}" for state in State)


def _object(report: Report, counts: "Counter[State]") -> str:
    checks = [
        {"topic": one.topic, "state": one.state.value, "says": one.says, "todo": one.todo}
        for one in report.findings
    ]
    totals = {state.value: counts[state] for state in State}
    return json.dumps({"counts": totals, "checks": checks, **report.facts}, indent=2)
