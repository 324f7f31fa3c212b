"""Run the whole matrix and write its tables into docs/exactly-once.md.

    python -m tests.exactly_once.report [--check]

With ``--check`` the file is left alone, and the exit code says whether every cell holds.
"""

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.cells import report, side_by_side
from tests.exactly_once.calls import CALLS, Result
from tests.exactly_once.faulty import WAYS
from tests.exactly_once.lines import WHENS
from tests.exactly_once.matrix import AT_ONCE, CELLS, FIRST, RESUMED
from tests.exactly_once.play import environment_in
from tests.exactly_once.zygote import Zygote

Results = Mapping[str, Result]


def run_all() -> Results:
    with tempfile.TemporaryDirectory(prefix="once-") as folder:
        environ = environment_in(Path(folder))
        os.environ.update(environ)
        zygote = Zygote(environ)
        try:
            with side_by_side(AT_ONCE, lambda name: CELLS[name].run(zygote), CELLS) as result:
                return {name: result(name) for name in CELLS}
        finally:
            zygote.close()


def fault_table(results: Results) -> Iterator[str]:
    yield f"| what happens to the call | {' | '.join(call.kind for call in CALLS)} |\n"
    yield "|---" * (len(CALLS) + 1) + "|\n"
    for way in WAYS:
        cells = [
            " / ".join(
                _outcome(results[name])
                for table in ("fault", "fault, deduped")
                if (name := f"{table} / {way.name} / {call.kind}") in results
            )
            for call in CALLS
        ]
        yield f"| {way.name} | {' | '.join(cells)} |\n"


def kill_table(results: Results) -> Iterator[str]:
    yield "| the line | before it | half of it written | after it |\n|---|---|---|---|\n"
    for label, count in FIRST.items():
        rows = [f"kill / {label} {number}" for number in range(1, count + 1)]
        yield f"| {label} | {' | '.join(_holding(results, rows, when) for when in WHENS)} |\n"
    for label in RESUMED:
        rows = [f"kill, resumed / {label} 1"]
        cells = " | ".join(_holding(results, rows, when) for when in WHENS)
        yield f"| second attempt: {label} | {cells} |\n"


def late_table(results: Results) -> Iterator[str]:
    yield f"| {' | '.join(call.kind for call in CALLS)} |\n"
    yield "|---" * len(CALLS) + "|\n"
    rows = [results[f"kill / late effect / {call.kind}"] for call in CALLS]
    yield f"| {' | '.join('holds' if row.good else '**broken**' for row in rows)} |\n"


def _outcome(result: Result) -> str:
    return result.told if result.good else "**broken**"


def _holding(results: Results, rows: list[str], when: str) -> str:
    found = [results[name] for row in rows if (name := f"{row} / {when}") in results]
    good = sum(result.good for result in found)
    return f"{good} of {len(found)}" if good == len(found) else f"**{good} of {len(found)}**"


def main() -> int:
    tables = {"faults": fault_table, "kills": kill_table, "late": late_table}
    return report("exactly-once.md", run_all, tables)


if __name__ == "__main__":
    sys.exit(main())
