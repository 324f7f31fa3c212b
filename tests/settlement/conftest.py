"""Cells run side by side, in this process's threads."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.settlement.cells import Result, run_cell
from tests.settlement.matrix import AT_ONCE, Cell
from tests.settlement.ways import BY_NAME

HERE = Path(__file__).parent


@pytest.fixture(scope="session", autouse=True)
def cell_result(request: pytest.FixtureRequest) -> Iterator[Callable[[Cell], Result]]:
    """The result of a cell. All cells that this session will ask for begin with its first test
    here, beside the tests that mostly wait for something that never answers."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        running: dict[Cell, Future[Result]] = {}
        here = [item for item in request.session.items if item.path.is_relative_to(HERE)]
        for item in here:
            parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(
                item, "callspec"
            ) else {}  # fmt: skip
            if cell := parameters.get("cell"):
                phase, way, embedded = cell
                running[cell] = pool.submit(run_cell, phase, BY_NAME[way], embedded=embedded)
        try:
            yield lambda cell: running[cell].result()
        finally:
            for future in running.values():
                future.cancel()
