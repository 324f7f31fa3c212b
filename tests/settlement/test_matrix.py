"""The settlement matrix: a run, held in every phase, is stopped in every way.

The whole of it is long; a fixed sample runs always. `python -m tests.settlement.report` runs it
too, and writes the table in docs/settlement.md.
"""

from collections.abc import Callable

import pytest

from tests.cells import parameters
from tests.settlement.cells import Result
from tests.settlement.matrix import CELLS, SAMPLE, Cell, name


@pytest.mark.parametrize("cell", parameters(CELLS, SAMPLE, name))
def test_cell(cell: Cell, cell_result: Callable[[Cell], Result]) -> None:
    result = cell_result(cell)
    assert result.flaws == [], result.told
