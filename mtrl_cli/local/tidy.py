"""`python -m mtrl_cli.local.tidy --store DIR`: what a store holds, and removing from it.

Without ``--remove`` a line of JSON for each checkpoint goes to stdout: its URI, its size in bytes,
its time. With it the URIs that come on stdin, one a line, are removed, each with a line of what is
gone; and models that are left without a checkpoint, and what writers that died left half written,
a day later. What is left alone (see `shelves`) has a line too: its place, and why. Any number of
servers may write meanwhile, and others may remove: a file is there or gone. SIGINT and SIGTERM end
it behind the next file; whoever kills it knows of each file that is gone but one.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mtrl_cli.local.shelves import Shelves
from mtrl_cli.local.store import parse_uri, sweep_dead

DAY = 86_400.0


class _Lines:
    """What is told on stdout, a line at once; after a signal the process ends behind the line."""

    def __init__(self) -> None:
        self._number = 0
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._stop)

    def _stop(self, number: int, _frame: object) -> None:
        self._number = number

    def write(self, **facts: Any) -> None:
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()
        if self._number:
            raise SystemExit(128 + self._number)

    def left(self, place: str, why: str) -> None:
        self.write(left=place, why=why)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0, or 2 with a line on stderr where there is no store."""
    parser = argparse.ArgumentParser(prog="mtrl store")
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--remove", action="store_true")
    arguments = parser.parse_args(argv)
    root: Path = arguments.store
    models = root / "models"
    if models.is_symlink() or not models.is_dir():
        link = f"{models} is a symbolic link, and none is followed in a store"
        sys.stderr.write(
            f"--store: {link if models.is_symlink() else f'{root}: there is no store here'}\n"
        )
        return 2
    lines = _Lines()
    shelves = Shelves(root, lines.left)
    if not arguments.remove:
        found = shelves.checkpoints()
    else:
        sweep_dead(root)
        found = shelves.remove({*map(parse_uri, sys.stdin.read().split())}, time.time() - DAY)
    for item in found:
        lines.write(uri=item.ref.uri, size=item.size, time=item.time)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
