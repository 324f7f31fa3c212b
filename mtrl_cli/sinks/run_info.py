"""What a tracker is told of a run as it is opened."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mtrl_cli.sinks.past import Past


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The run as a tracker gets it."""

    id: str
    experiment: str
    folder: Path
    project: str
    settings: Mapping[str, str]
    """Without secrets."""
    past: Callable[[], Past] = Past
    """Reads what is behind this attempt."""
