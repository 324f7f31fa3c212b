"""CPU that the quick commands take, beside a bare Python and beside their budgets.

    python -m benchmarks.startup [--repeat N] [--json FILE]

Each command is run N times, in turn with ``python -c pass`` so that what else the machine does
falls on all of them; the figure is the smallest CPU time (user and system, children included), and
its ratio to the bare Python's of the same rounds. Budgets were set where a bare Python takes 8 ms:
what is held against them is 8 ms times the ratio. `show` reads a run of two steps, made first.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.facts import load, write

ROOT = Path(__file__).resolve().parents[1]
MTRL = (sys.executable, "-m", "mtrl_cli")
COMPLETION = (sys.executable, "-c", "from mtrl_cli.__main__ import main; main()")
TINY = ("train.steps=2", "group.per_step=2", "group.size=4", "eval.games=0")

COMMANDS: dict[str, tuple[Sequence[str], int | None]] = {
    "python -c pass": ((sys.executable, "-c", "pass"), None),
    "mtrl --help": ((*MTRL, "--help"), 150),
    "mtrl train --help": ((*MTRL, "train", "--help"), None),
    "mtrl runs": ((*MTRL, "runs"), 250),
    "mtrl cancel": ((*MTRL, "cancel", "last"), 250),
    "mtrl show": ((*MTRL, "show", "last"), 250),
    "mtrl config list": ((*MTRL, "config", "list"), None),
    "mtrl config show": ((*MTRL, "config", "show"), 500),
    "mtrl rollout --dry-run": ((*MTRL, "rollout", "--dry-run"), 500),
    "mtrl doctor --help": ((*MTRL, "doctor", "--help"), 250),
    "completion (mtrl tr…)": (COMPLETION, 150),
}
"""What is run, and its budget in ms of CPU."""

BARE_MS = 8.0
"""CPU of a bare Python where the budgets were set."""


@dataclass(frozen=True)
class Figure:
    command: str
    cpu_ms: float
    ratio: float
    """To the bare Python."""
    budget_ms: int | None

    @property
    def scaled_ms(self) -> float:
        """On the machine of the budgets."""
        return BARE_MS * self.ratio

    @property
    def verdict(self) -> str:
        if self.budget_ms is None:
            return ""
        return "ok" if self.scaled_ms <= self.budget_ms else "OVER"


def cpu_seconds(command: Sequence[str], folder: Path) -> float:
    """User and system time of one run of ``command``."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environ = {**os.environ, "MTRL_HOME": str(folder / "home"), "PYTHONPATH": str(ROOT)}
    if command is COMPLETION:
        environ |= {"_MTRL_COMPLETE": "complete_bash", "COMP_WORDS": "mtrl tr", "COMP_CWORD": "1"}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.decode()}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(repeat: int) -> list[Figure]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cpu_seconds((*MTRL, "train", *TINY), folder)
        best = dict.fromkeys(COMMANDS, float("inf"))
        for _ in range(repeat):
            for command, (arguments, _) in COMMANDS.items():
                best[command] = min(best[command], cpu_seconds(arguments, folder))
    bare = best["python -c pass"]
    return [
        Figure(command, round(1000 * seconds, 1), round(seconds / bare, 1), COMMANDS[command][1])
        for command, seconds in best.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=10, metavar="N")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    asked = parser.parse_args()
    figures = measure(asked.repeat)
    print(f"load {load()}, best of {asked.repeat}")
    print(f"{'command':<24}{'CPU ms':>8}{'ratio':>8}{'scaled':>8}{'budget':>8}")
    for one in figures:
        budget = "" if one.budget_ms is None else str(one.budget_ms)
        measured = f"{one.cpu_ms:>8.0f}{one.ratio:>8.1f}{one.scaled_ms:>8.0f}"
        print(f"{one.command:<24}{measured}{budget:>8}  {one.verdict}".rstrip())
    write(asked.json, "startup", [asdict(figure) for figure in figures])


if __name__ == "__main__":
    main()
