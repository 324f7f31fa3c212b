"""A matrix of cells: each is run once, side by side with others, and has flaws or none.

A test module shows a fixed sample of them, and the rest when it is asked for long tests; a report
runs them all and writes what they told into a document, between markers.
"""

import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"

CellT = TypeVar("CellT")
ResultT = TypeVar("ResultT")


class Result(Protocol):
    flaws: list[str]
    """What was not as it must be."""


ReportT = TypeVar("ReportT", bound=Result)


def parameters(
    cells: Iterable[CellT], sample: Collection[CellT], name: Callable[[CellT], str] = str
) -> list[Any]:
    """What to parametrize a test with: what is not in ``sample`` is long."""
    return [
        pytest.param(cell, id=name(cell), marks=[] if cell in sample else [pytest.mark.long])
        for cell in cells
    ]


def asked_for(session: pytest.Session, where: Path, parameter: str) -> list[Any]:
    """The values of ``parameter`` in this session's tests of the file or folder ``where``."""
    return [
        item.callspec.params[parameter]
        for item in session.items
        if item.path.is_relative_to(where)
        and hasattr(item, "callspec")
        and parameter in item.callspec.params
    ]


@contextmanager
def side_by_side(
    at_once: int, run: Callable[[CellT], ResultT], cells: Iterable[CellT]
) -> Iterator[Callable[[CellT], ResultT]]:
    """Run ``cells`` in threads; gives what waits for the result of one. Those that have not begun
    at the end are dropped."""
    with ThreadPoolExecutor(at_once) as pool:
        running = {cell: pool.submit(run, cell) for cell in cells}
        try:
            yield lambda cell: running[cell].result()
        finally:
            for future in running.values():
                future.cancel()


def report(
    document: str,
    run_all: Callable[[], Mapping[str, ReportT]],
    tables: Mapping[str, Callable[[Mapping[str, ReportT]], Iterable[str]]],
) -> int:
    """Run all cells; write ``tables``, by their markers' names, into ``document`` unless
    ``--check`` is on the command line. Returns the exit code: 1 when a cell does not hold."""
    began = time.monotonic()
    results = run_all()
    broken = {name: result for name, result in results.items() if result.flaws}
    for name, result in broken.items():
        print(f"{name}: {'; '.join(result.flaws)}", file=sys.stderr)
    took = time.monotonic() - began
    print(f"{len(results) - len(broken)} of {len(results)} cells hold; {took:.0f} s")
    if "--check" not in sys.argv:
        file = DOCS / document
        text = file.read_text(encoding="utf-8")
        for name, table in tables.items():
            text = _written(text, name, table(results))
        file.write_text(text, encoding="utf-8")
    return 1 if broken else 0


def _written(text: str, name: str, lines: Iterable[str]) -> str:
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return before + begin + "".join(lines) + end + after
