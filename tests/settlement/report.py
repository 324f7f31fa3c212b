"""Run the whole matrix and write its table into docs/settlement.md.

    python -m tests.settlement.report [--check]

With ``--check`` the file is left alone, and the exit code says whether every cell holds.
"""

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.settlement.cells import Result, run_cell
from tests.settlement.matrix import AT_ONCE, CELLS, Cell, name
from tests.settlement.phases import EMBEDDED, PHASES
from tests.settlement.ways import BY_NAME, WAYS

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "settlement.md"
_BEGIN, _END = "<!-- matrix: begin -->\n", "<!-- matrix: end -->\n"


def run_all() -> dict[Cell, Result]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        running = {
            cell: pool.submit(run_cell, cell[0], BY_NAME[cell[1]], embedded=cell[2])
            for cell in CELLS
        }
        return {cell: future.result() for cell, future in running.items()}


def table(results: dict[Cell, Result]) -> Iterator[str]:
    yield f"| held in | {' | '.join(way.name for way in WAYS)} |\n"
    yield "|---" * (len(WAYS) + 1) + "|\n"
    rows = [(phase.name, False) for phase in PHASES] + [(phase, True) for phase in EMBEDDED]
    for phase, embedded in rows:
        cells = [_mark(results.get((phase, way.name, embedded))) for way in WAYS]
        yield f"| {phase}{' (embedded server)' if embedded else ''} | {' | '.join(cells)} |\n"


def _mark(result: Result | None) -> str:
    if result is None:
        return "–"
    return f"{result.code}, {result.commits}" if result.good else "**broken**"


def main() -> int:
    began = time.monotonic()
    results = run_all()
    broken = {cell: result for cell, result in results.items() if not result.good}
    for cell, result in broken.items():
        print(f"{name(cell)}: {'; '.join(result.flaws)}", file=sys.stderr)
    took = time.monotonic() - began
    print(f"{len(results) - len(broken)} of {len(results)} cells hold; {took:.0f} s")
    if "--check" not in sys.argv:
        text = DOCUMENT.read_text(encoding="utf-8")
        before, _, rest = text.partition(_BEGIN)
        _, _, after = rest.partition(_END)
        written = before + _BEGIN + "".join(table(results)) + _END + after
        DOCUMENT.write_text(written, encoding="utf-8")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
