"""Run the whole matrix and write its table into docs/settlement.md.

    python -m tests.settlement.report [--check]

With ``--check`` the file is left alone, and the exit code says whether every cell holds.
"""

import sys
from collections.abc import Iterator, Mapping

from tests.cells import report, side_by_side
from tests.settlement.cells import Result
from tests.settlement.matrix import AT_ONCE, CELLS, name, run
from tests.settlement.phases import EMBEDDED, PHASES
from tests.settlement.ways import WAYS


def run_all() -> Mapping[str, Result]:
    with side_by_side(AT_ONCE, run, CELLS) as result:
        return {name(cell): result(cell) for cell in CELLS}


def table(results: Mapping[str, Result]) -> Iterator[str]:
    yield f"| held in | {' | '.join(way.name for way in WAYS)} |\n"
    yield "|---" * (len(WAYS) + 1) + "|\n"
    rows = [(phase.name, False) for phase in PHASES] + [(phase, True) for phase in EMBEDDED]
    for phase, embedded in rows:
        cells = [_mark(results.get(name((phase, way.name, embedded)))) for way in WAYS]
        yield f"| {phase}{' (embedded server)' if embedded else ''} | {' | '.join(cells)} |\n"


def _mark(result: Result | None) -> str:
    if result is None:
        return "–"
    return f"{result.code}, {result.commits}" if result.good else "**broken**"


if __name__ == "__main__":
    sys.exit(report("settlement.md", run_all, {"matrix": table}))
