"""Cells run side by side, in this process's threads."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cells import asked_for, side_by_side
from tests.settlement.cells import Result
from tests.settlement.matrix import AT_ONCE, Cell, run


@pytest.fixture(scope="session", autouse=True)
def cell_result(request: pytest.FixtureRequest) -> Iterator[Callable[[Cell], Result]]:
    """The result of a cell. All cells that this session will ask for begin with its first test
    here, beside the tests that mostly wait for something that never answers."""
    cells = asked_for(request.session, Path(__file__).parent, "cell")
    with side_by_side(AT_ONCE, run, cells) as result:
        yield result
