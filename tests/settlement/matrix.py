"""Which cells there are."""

from tests.settlement.cells import Result, run_cell
from tests.settlement.phases import EMBEDDED, PHASES
from tests.settlement.ways import BY_NAME, WAYS, applies

AT_ONCE = 4
"""Cells that run side by side: each is a few processes that mostly wait."""

Cell = tuple[str, str, bool]
"""Phase, way, embedded server."""

CELLS: list[Cell] = [
    (phase.name, way.name, False) for phase in PHASES for way in WAYS if applies(phase.name, way)
] + [(phase, way.name, True) for phase in EMBEDDED for way in WAYS]

SAMPLE: list[Cell] = [
    ("start-up", "SIGINT", False),
    ("env creation", "SIGTERM", False),
    ("sampling", "SIGINT ×2", False),
    ("env step", "cancel --now", False),
    ("waiting for the rest of a group", "SIGINT", False),
    ("training call in flight", "SIGINT ×2", False),
    ("training call in flight", "SIGKILL", False),
    ("optimizer step in flight", "SIGINT ×3", False),
    ("publish", "cancel", False),
    ("evaluation", "SIGINT", False),
    ("shutdown", "SIGINT", False),
    ("env step", "SIGINT", True),
]
"""What runs always."""


def name(cell: Cell) -> str:
    phase, way, embedded = cell
    return f"{phase} / {way}" + (" / embedded" if embedded else "")


def run(cell: Cell) -> Result:
    phase, way, embedded = cell
    return run_cell(phase, BY_NAME[way], embedded=embedded)
