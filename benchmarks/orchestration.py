"""What the rollout core costs without any HTTP: mtrl beside tinker-cookbook's `do_group_rollout`.

    python -m benchmarks.orchestration [--peer PYTHON] [--rounds N] [--json FILE]

The same fake policy and environment for both (`workload`), no service and no tokenizer: what is
left is the core's own work. The peer runs under a Python of its own (about 2 GB):

    python3.11 -m venv ~/.venvs/cookbook
    ~/.venvs/cookbook/bin/pip install torch==2.13.0 tinker-cookbook==0.5.8

``--peer`` or MTRL_COOKBOOK_PYTHON names that Python when it is elsewhere; without one mtrl is
measured alone. Both players live in processes of their own and take turns, round by round, so that
what else the machine does falls on both; of CPU times the best round counts. mtrl plays with its
deadline, budgets, token checks, borrows and records, as always; the peer with none of its limits.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.facts import load, write
from benchmarks.workload import GROUP, TEXTS, Workload, measured
from tests.peers.venvs import interpreter

Found: TypeAlias = "tuple[Case, dict[str, dict[str, float]]]"
PLAYERS = {"mtrl": "benchmarks.orchestration_mtrl", "cookbook": "benchmarks.orchestration_cookbook"}
COOKBOOK = interpreter("cookbook")
TURNS = (1, 8, 16, 32, 64)
EPISODES = 2 * GROUP
ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Case:
    """One measurement."""

    what: str
    text: str
    turns: int
    episodes: int = EPISODES
    seconds: tuple[float, float] = (0.0, 0.0)
    rounds: int = 1

    def work(self) -> Workload:
        return Workload(TEXTS[self.text], self.turns, self.episodes, self.seconds)


def cases(rounds: int) -> Iterator[Case]:
    for text in TEXTS:
        for turns in TURNS:
            yield Case("cpu", text, turns, rounds=rounds)
            yield Case("memory", text, turns, episodes=GROUP)
    for episodes in (2048, 10_000):  # all wait at once
        yield Case("concurrent", "short", 8, episodes, (2.0, 3.0))
        yield Case("concurrent", "long", 8, episodes, (2.0, 3.0))
    yield Case("lag", "short", 16, 1000, (0.5, 1.5))
    yield Case("lag", "long", 16, 1000, (0.5, 1.5))


# --- a player's process ---------------------------------------------------------------------


def serve(player: str) -> None:
    """Measure what is asked for on standard input, a case a line; answer a line each."""
    from importlib import import_module

    play = import_module(PLAYERS[player]).play
    print("ready", flush=True)
    for line in sys.stdin:
        case = Case(**json.loads(line))
        case = replace(case, seconds=(case.seconds[0], case.seconds[1]))
        print(json.dumps(measured(case.what, play, case.work(), 1)), flush=True)


class Player:
    """A player's process, asked one case at a time."""

    def __init__(self, name: str, python: str) -> None:
        self.name, self._python = name, python

    def __enter__(self) -> "Player":
        command = [self._python, "-m", "benchmarks.orchestration", "--play", self.name]
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environ, stdin=pipe, stdout=pipe, text=True
        )
        self._line()
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()

    def measure(self, case: Case) -> dict[str, float]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(case)) + "\n")
        self._process.stdin.flush()
        return json.loads(self._line())  # type: ignore[no-any-return]

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name}: its process ended")
        return line


# --- the comparison -------------------------------------------------------------------------


def compare(case: Case, players: Sequence[Player]) -> dict[str, dict[str, float]]:
    """One case by every player, in turns; the best round of each."""
    best: dict[str, dict[str, float]] = {}
    for _ in range(case.rounds):
        for player in players:
            figures = player.measure(case)
            before = best.get(player.name, figures)
            best[player.name] = {k: min(v, before[k]) for k, v in figures.items()}
    return best


def compare_all(asked: Sequence[Case], pythons: dict[str, str]) -> Iterator[Found]:
    """All cases. One that looks at a process's peak memory gets fresh processes, and only one of
    them at a time: both together would not fit everywhere."""
    with ExitStack() as stack:
        players = [stack.enter_context(Player(*one)) for one in pythons.items()]
        for case in asked:
            if case.what != "concurrent":
                yield case, compare(case, players)
    for case in asked:
        if case.what == "concurrent":
            found = {}
            for one in pythons.items():
                # The peer keeps every observation of 10,000 long episodes: more than 3 GiB.
                if one[0] == "mtrl" or case.text == "short" or case.episodes < 10_000:
                    with Player(*one) as player:
                        found[player.name] = player.measure(case)
            yield case, found


UNITS = {
    "cpu": (("us", "µs a turn"),),
    "memory": (("kib", "KiB an episode"),),
    "concurrent": (("mib", "MiB in all"), ("us", "µs a turn")),
    "lag": (
        ("pass_p99_ms", "ms of CPU a pass, p99"),
        ("pass_max_ms", "ms of CPU a pass, longest"),
        ("late_p99_ms", "ms that a timer is late, p99"),
    ),
}


def show(case: Case, found: dict[str, dict[str, float]]) -> None:
    what = f"{case.what}, {case.text}, {case.turns} turns, {case.episodes} episodes"
    for key, unit in UNITS[case.what]:
        cells = [f"{name} {figures[key]:.1f}" for name, figures in found.items()]
        if len(found) > 1:
            cells.append(f"ratio {found['cookbook'][key] / found['mtrl'][key]:.1f}")
        print(f"{what:<46} {', '.join(cells)}  {unit}; load {load()}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", default=str(COOKBOOK), help="a Python that has tinker-cookbook")
    parser.add_argument("--rounds", type=int, default=15, help="of every CPU figure")
    parser.add_argument("--only", help="cpu, memory, concurrent or lag", choices=list(UNITS))
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--play", choices=list(PLAYERS), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.play:
        serve(asked.play)
        return
    pythons = {"mtrl": sys.executable}
    if Path(asked.peer).exists():
        pythons["cookbook"] = asked.peer
    else:
        print(f"no Python at {asked.peer}: mtrl alone")
    rows: list[dict[str, Any]] = []
    wanted = [case for case in cases(asked.rounds) if asked.only in (None, case.what)]
    for case, found in compare_all(wanted, pythons):
        show(case, found)
        rows.append({**asdict(case), "players": found})
    write(asked.json, "orchestration", rows)


if __name__ == "__main__":
    main()
