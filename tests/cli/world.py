"""A user's folder with runs in it, and the commands as they are typed there."""

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.cli.processes import mtrl

TINY = ("train.steps=2", "group.per_step=2", "group.size=4", "eval.games=12")
"""Overrides for a training run of a few seconds on the embedded server."""


class World:
    """A folder to type commands in; ``home`` is where its store is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.first = "latest"
        """The run that the world began with."""
        self.told = ""
        """What that run printed."""

    def mtrl(self, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
        return mtrl(*arguments, cwd=self.folder, MTRL_HOME=str(self.home), **extra)

    def run(self, name: str = "latest") -> Path:
        return (self.folder / "runs" / name).resolve()

    def state(self, name: str = "latest") -> dict[str, Any]:
        return json.loads((self.run(name) / "run.json").read_text())

    def commits(self, name: str = "latest") -> list[dict[str, Any]]:
        lines = (self.run(name) / "commits.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]
