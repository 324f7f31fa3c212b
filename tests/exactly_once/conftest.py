"""Cells run side by side, in this process's threads and the processes of a zygote."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cells import asked_for, side_by_side
from tests.exactly_once.calls import Result
from tests.exactly_once.matrix import AT_ONCE, CELLS
from tests.exactly_once.play import environment_in
from tests.exactly_once.zygote import Zygote


@pytest.fixture(scope="package")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """What makes processes, in an environment that this process shares."""
    environ = environment_in(tmp_path_factory.mktemp("once"))
    made = Zygote(environ)
    with pytest.MonkeyPatch.context() as patch:
        for key, value in environ.items():
            patch.setenv(key, value)
        try:
            yield made
        finally:
            made.close()


@pytest.fixture(scope="package")
def cell_result(
    request: pytest.FixtureRequest, zygote: Zygote
) -> Iterator[Callable[[str], Result]]:
    """The result of a cell. All cells that this session will ask for begin with the first."""
    names = asked_for(request.session, Path(__file__).parent, "once")
    with side_by_side(AT_ONCE, lambda name: CELLS[name].run(zygote), names) as result:
        yield result
