"""Folders of runs whose process is really gone, with the ledger that it left."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.cli.processes import environment

_SCRIPT = """
import json, os, sys
from pathlib import Path
from mtrl_cli.runs.folder import RunFolder
runs, config, lines = json.loads(sys.argv[1])
folder = RunFolder.create(Path(runs), "dead", "train", config)
for entry, key, state, facts in lines:
    getattr(folder.ledger, entry)(key, state, **facts)
print(folder.path)
sys.stdout.flush()
os.kill(os.getpid(), 9)
"""

Line = tuple[str, str, str, Mapping[str, Any]]
"""entry (``borrow`` or ``call``), key, state, facts."""


def dead_run(runs: Path, lines: Sequence[Line] = (), config: str = "name: dead\n") -> Path:
    """The folder of a run that wrote ``lines`` and was killed."""
    told = json.dumps([str(runs), config, lines])
    made = subprocess.run(
        [sys.executable, "-c", _SCRIPT, told],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert made.stdout, made.stderr
    return Path(made.stdout.strip())


def amend(folder: Path, **facts: Any) -> None:
    """Change what ``run.json`` says."""
    path = folder / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **facts}))
