"""What `mtrl train conf=blackjack` learns: full runs of several seeds, measured from outside.

    python benchmarks/learning.py run --seeds 101 102 103 104 105 --out learning.json
    python benchmarks/learning.py report learning.json --svg docs/learning.svg

`run` starts the command as a user would, one seed after the other, and notes what its run folder
says and the CPU time of all its processes together (the embedded server is its child). `report`
prints the table of docs/learning.md and draws the curve.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

REFERENCES = {"random": -0.393, "always stand": -0.183, "hit below 17": -0.080, "optimum": -0.0425}
WINDOW = 10
"""Steps that one point of the curve averages: 1,280 episodes, standard error 0.027."""


@dataclass(frozen=True)
class Result:
    """One seed's run."""

    seed: int
    before: dict[str, Any]
    after: dict[str, Any]
    cpu_seconds: float
    wall_seconds: float
    rewards: list[float]
    kl: list[float | None]


def run_seed(seed: int, overrides: Sequence[str]) -> Result:
    """Train one seed in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "MTRL_HOME": f"{folder}/home"}
        command = [sys.executable, "-m", "mtrl_cli", "train", "conf=blackjack", f"seed={seed}"]
        started, cpu = time.monotonic(), _children_cpu()
        subprocess.run(
            [*command, f'run.dir="{folder}/runs"', *overrides], env=environment, check=True
        )
        wall, cpu = time.monotonic() - started, _children_cpu() - cpu
        latest = Path(folder) / "runs" / "latest"
        run = json.loads((latest / "run.json").read_text())
        lines = [json.loads(line) for line in (latest / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "reward" in line]
    return Result(
        seed=seed,
        before=run["evaluation"]["before"],
        after=run["evaluation"]["after"],
        cpu_seconds=round(cpu, 1),
        wall_seconds=round(wall, 1),
        rewards=[line["reward"] for line in steps],
        kl=[line.get("kl") for line in steps],
    )


def table(results: Sequence[Result]) -> str:
    """The Markdown table of all seeds."""
    rows = [
        "| seed | before ± s.e. | after ± s.e. | rise | invalid calls | CPU | wall |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in results:
        before, after = result.before, result.after
        rows.append(
            f"| {result.seed} | {before['mean']:.3f} ± {before['se']:.3f} "
            f"| {after['mean']:.3f} ± {after['se']:.3f} | {after['mean'] - before['mean']:+.3f} "
            f"| {100 * after['invalid_call_share']:.2f} % | {result.cpu_seconds:.0f} s "
            f"| {result.wall_seconds:.0f} s |"
        )
    return "\n".join(rows)


def curve(results: Sequence[Result], width: int = 720, height: int = 360) -> str:
    """An SVG of the mean training reward over the steps, beside the known policies."""
    left, right, top, bottom = 60, 150, 20, 40
    low, high = -0.55, 0.10
    steps = max(len(result.rewards) for result in results)

    def x(step: float) -> float:
        return left + (width - left - right) * step / steps

    def y(value: float) -> float:
        return top + (height - top - bottom) * (high - value) / (high - low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for name, value in REFERENCES.items():
        parts.append(
            f'<line x1="{left}" x2="{width - right}" y1="{y(value):.1f}" y2="{y(value):.1f}" '
            'stroke="#999" stroke-dasharray="4 3"/>'
        )
        shift = 12 if name == "hit below 17" else 0
        parts.append(
            f'<text x="{width - right + 6}" y="{y(value) + 4 + shift:.1f}" fill="#555">'
            f"{name} {value:.3f}</text>"
        )
    parts += [
        f'<text x="{x(step):.0f}" y="{height - 18}" text-anchor="middle">{step}</text>'
        for step in range(0, steps + 1, 25)
    ]
    parts += [
        f'<text x="{left - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick}</text>'
        for tick in (-0.5, -0.4, -0.3, -0.2, -0.1, 0.0)
    ]
    parts.append(
        f'<text x="{(left + width - right) / 2:.0f}" y="{height - 4}" text-anchor="middle">'
        f"step (mean training reward over {WINDOW} steps)</text>"
    )
    colours = ("#1b6ca8", "#c8553d", "#2e8b57", "#8e5ea2", "#b8860b")
    for result, colour in zip(results, colours, strict=False):
        points = [
            (x(end - WINDOW / 2), y(sum(result.rewards[end - WINDOW : end]) / WINDOW))
            for end in range(WINDOW, len(result.rewards) + 1)
        ]
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}"/>')
    return "\n".join([*parts, "</svg>", ""])


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True, dest="command")
    running = commands.add_parser("run")
    running.add_argument("--seeds", type=int, nargs="+", default=[101, 102, 103, 104, 105])
    running.add_argument("--out", type=Path, required=True)
    running.add_argument("overrides", nargs="*", help="further KEY=VALUE")
    reporting = commands.add_parser("report")
    reporting.add_argument("results", type=Path)
    reporting.add_argument("--svg", type=Path)
    arguments = parser.parse_args()

    if arguments.command == "run":
        results = [run_seed(seed, arguments.overrides) for seed in arguments.seeds]
        machine = f"{os.cpu_count()} cores, {platform.machine()}, {platform.python_version()}"
        document = {"machine": machine, "results": [asdict(result) for result in results]}
        arguments.out.write_text(json.dumps(document))
    else:
        document = json.loads(arguments.results.read_text())
        results = [Result(**result) for result in document["results"]]
        if arguments.svg:
            arguments.svg.write_text(curve(results))
    print(document["machine"])
    print(table(results))


if __name__ == "__main__":
    main()
