"""Which cells there are."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.exactly_once import faulty, killed
from tests.exactly_once.calls import CALLS, Result
from tests.exactly_once.faulty import WAYS
from tests.exactly_once.lines import WHENS, Place
from tests.exactly_once.zygote import Zygote

AT_ONCE = 4
"""Cells that run side by side: each of them mostly waits."""

FIRST = {
    "server_session requested": 1,
    "server_session held": 1,
    "server_model requested": 1,
    "create_model intent": 1,
    "create_model accepted": 1,
    "create_model done": 1,
    "server_model held": 1,
    "publish intent": 5,
    "publish accepted": 5,
    "publish done": 5,
    "commit": 5,
    "group admitted": 4,
    "forward_backward intent": 4,
    "forward_backward accepted": 4,
    "forward_backward done": 4,
    "optim_step intent": 4,
    "optim_step accepted": 4,
    "optim_step done": 4,
    "save_state intent": 2,
    "save_state accepted": 2,
    "save_state done": 2,
    "group trained": 4,
    "metrics": 4,
    "server_model returning": 1,
    "unload_model intent": 1,
    "unload_model accepted": 1,
    "unload_model done": 1,
    "server_model released": 1,
    "server_session returning": 1,
    "server_session released": 1,
}
"""Every line that an undisturbed run writes: label → how many."""

RESUMED = (
    "optim_step unknown",
    "server_model released",
    "server_session released",
    "rollback",
    "server_session requested",
    "server_session held",
    "server_model requested",
    "create_model intent",
    "create_model accepted",
    "create_model done",
    "server_model held",
    "load_state intent",
    "load_state accepted",
    "load_state done",
    "publish intent",
    "publish accepted",
    "publish done",
    "group admitted",
)
"""The lines of a resumed attempt until it trains: settling, going back, beginning."""


@dataclass(frozen=True)
class Cell:
    """A row and a column of one of the tables, and how it is run."""

    table: str
    row: str
    column: str
    run: Callable[[Zygote], Result]

    @property
    def name(self) -> str:
        return f"{self.table} / {self.row} / {self.column}"


def fault(kind: str, way: str, *, dedupes: bool) -> Cell:
    table = "fault, deduped" if dedupes else "fault"
    return Cell(table, way, kind, lambda _: faulty.run_cell(kind, way, dedupes=dedupes))


def kill(place: Place, *, resumed: bool = False) -> Cell:
    return Cell(
        "kill, resumed" if resumed else "kill",
        f"{place.label} {place.number}",
        place.when,
        lambda zygote: killed.run_cell(place, zygote, resumed=resumed),
    )


def late(kind: str) -> Cell:
    return Cell("kill", "late effect", kind, lambda zygote: killed.run_late(kind, zygote))


def _faults() -> Iterator[Cell]:
    for way in WAYS:
        for call in CALLS:
            yield fault(call.kind, way.name, dedupes=False)
            if way.deduped and call.numbered:
                yield fault(call.kind, way.name, dedupes=True)


def _kills() -> Iterator[Cell]:
    for label, count in FIRST.items():
        for number in range(1, count + 1):
            # Half a line is the same whichever of its kind it is.
            yield from (kill(Place(label, number, w)) for w in WHENS if w != "torn" or number == 1)
    for label in RESUMED:
        yield from (kill(Place(label, 1, when), resumed=True) for when in WHENS)
    yield from (late(call.kind) for call in CALLS)


CELLS = {cell.name: cell for cell in (*_faults(), *_kills())}

SAMPLE = (
    "fault / reply dropped / create_model",
    "fault / reply dropped / optim_step",
    "fault, deduped / reply dropped / optim_step",
    "fault / reply cut in the middle / load_state",
    "fault / 500, executed / forward_backward",
    "fault / effect after the resume / optim_step",
    "fault / poll: 500, 500 / save_state",
    "fault / accepted, failed half way / publish",
    "kill / optim_step intent 2 / after",
    "kill / optim_step accepted 3 / before",
    "kill / commit 3 / torn",
    "kill / commit 5 / before",
    "kill, resumed / rollback 1 / after",
    "kill, resumed / load_state accepted 1 / before",
    "kill / late effect / optim_step",
)
"""What runs always."""
