"""How far sampling and training overlap: wall time a step, against S + T and max(S, T).

    python -m benchmarks.pipeline [--repeat N] [--json FILE]

The training loop runs as in `mtrl train`: the loop, the driver, the rollout core, the ledger and
the commits of a run folder, and the Tinker client over real HTTP. Only the service is scripted
(`ScriptedPolicyServer`, in the same process): a sample and a training call take a set time. The
episodes are plain numbers, so that no tokenizer's time is in the figures.

- S: seconds of the longest episode of a step on the server, as scripted; the mean over steps.
- T: seconds of a step's three training calls (forward/backward, optimizer step, publish), as
  scripted.
- Equal episodes: every one has as many turns. Heavy tails: the number of turns is drawn from a
  Pareto distribution, so that a step's longest episode is several times its mean.
- Lag 0 is lock-step: a batch is sampled, then trained, and the next one begins.
- Trainer busy: T / wall. In flight: episodes that are being sampled, on average; a batch is 8.
- Saturated: no more episodes run at once than one step has, as on a server that is full; without
  that bound the groups of all versions in flight run side by side.

A step's wall time is the mean over the steps after the pipeline has filled and before it drains;
of several runs of a case the quickest counts, since other load on a machine only ever adds to it.
On servers that do not keep old snapshots the loop waits for what is in flight before the weights
change; the scripted server counts every sample on other weights than its group's (``drift``).
"""

import argparse
import asyncio
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from time import monotonic

from benchmarks.facts import write
from mtrl_cli.config.schema import Experiment, GroupConfig, RunConfig, ServerConfig, TrainConfig
from mtrl_cli.rollout.client import ClientMultiTurnRollout
from mtrl_cli.rollout.events import MemberFinished
from mtrl_cli.rollout.ports import StepOutcome
from mtrl_cli.rollout.resources import RolloutResources
from mtrl_cli.runs.commits import History
from mtrl_cli.runs.folder import RunFolder
from mtrl_cli.runs.stop import StopRequest
from mtrl_cli.servers.interface import Capabilities, Snapshots
from mtrl_cli.servers.tinker.service import TinkerService
from mtrl_cli.servers.transport import Address
from mtrl_cli.testing.policy_server import ScriptedPolicyServer
from mtrl_cli.testing.world import END, NumberChat, NumberTask, Script, World
from mtrl_cli.training.events import StepFinished
from mtrl_cli.training.loop import TrainingLoop
from mtrl_cli.training.operations import Operations
from mtrl_cli.training.plan import TrainingPlan
from mtrl_cli.training.start import begin
from mtrl_cli.training.totals import Totals

TRAINING_CALLS = 3
GROUPS, MEMBERS = 2, 4
_VOCABULARY = 300
_SHORT_LIVED: tuple[Snapshots, ...] = ("newest_only", "live")

Turns = Callable[[int], int]
"""How many turns the n-th episode has."""


def equal(turns: int) -> Turns:
    return lambda episode: turns


def pareto(shape: float, longest: int) -> Turns:
    """At least one turn, P(turns ≥ t) = t ** -shape, cut at ``longest``."""
    return lambda episode: min(longest, int(random.Random(episode).paretovariate(shape)))


@dataclass(frozen=True)
class Case:
    """One run."""

    name: str
    lag: int
    turns: Turns
    sample_seconds: float
    training_seconds: float
    """T: of all calls of a step together."""
    steps: int = 9
    saturated: bool = False
    snapshots: Snapshots = "immutable"
    """What the server does."""
    declared: Snapshots | None = None
    """What the client takes it for; None is the truth."""

    @property
    def sampling_seconds(self) -> float:
        """S. Episodes are opened in the order of admission, and so belong to steps."""
        each = GROUPS * MEMBERS
        longest = [max(map(self.turns, range(k * each, (k + 1) * each))) for k in range(self.steps)]
        return self.sample_seconds * fmean(longest)

    @property
    def episode_seconds(self) -> float:
        """Seconds on the server of all episodes of a step together; the mean over steps."""
        each = GROUPS * MEMBERS
        return self.sample_seconds * each * fmean(map(self.turns, range(each * self.steps)))


@dataclass(frozen=True)
class Figures:
    """What one run showed. Times are seconds a step."""

    name: str
    snapshots: str
    lag: int
    sampling: float
    training: float
    wall: float
    in_flight: float
    """Episodes that were being sampled, on average."""
    staleness: float
    """Policy versions between sampling and training: mean over groups."""
    staleness_max: float
    stale: int
    failed_episodes: int
    drift: int

    @property
    def trainer_busy(self) -> float:
        return self.training / self.wall

    @property
    def to_sum(self) -> float:
        return self.wall / (self.sampling + self.training)

    @property
    def to_max(self) -> float:
        return self.wall / max(self.sampling, self.training)


@dataclass
class Watch:
    """Listens to a run."""

    ends: list[float] = field(default_factory=list)
    staleness: list[float] = field(default_factory=list)
    staleness_max: float = 0.0
    failed: int = 0

    def __call__(self, event: object) -> None:
        if isinstance(event, StepFinished):
            self.ends.append(monotonic())
            self.staleness.append(event.metrics["staleness"])
            self.staleness_max = max(self.staleness_max, event.metrics["staleness_max"])
        elif isinstance(event, MemberFinished) and event.failure is not None:
            self.failed += 1

    def seconds_a_step(self, lag: int) -> float:
        """Without the steps in which the pipeline fills or drains."""
        steady = self.ends[lag : len(self.ends) - lag]
        return (steady[-1] - steady[0]) / (len(steady) - 1)


async def measure(case: Case) -> Figures:
    """Run one case, in a folder that is gone afterwards."""
    watch = Watch()
    server = ScriptedPolicyServer(
        sampler=lambda tokens, seed: ([101, END], [-0.5, -0.5]),
        sample_seconds=case.sample_seconds,
        training_seconds=case.training_seconds / TRAINING_CALLS,
        snapshots=case.snapshots,
        inline=True,
    )
    with server, tempfile.TemporaryDirectory() as runs:
        totals = await _train(case, server.url, Path(runs), watch)
    wall = watch.seconds_a_step(case.lag)
    return Figures(
        name=case.name,
        snapshots=case.snapshots,
        lag=case.lag,
        sampling=case.sampling_seconds,
        training=case.training_seconds,
        wall=wall,
        in_flight=case.episode_seconds / wall,
        staleness=fmean(watch.staleness),
        staleness_max=watch.staleness_max,
        stale=totals.skipped.get("stale", 0),
        failed_episodes=watch.failed,
        drift=len(server.drifts),
    )


async def _train(case: Case, url: str, runs: Path, watch: Watch) -> Totals:
    plan, totals, task = TrainingPlan(_experiment(case)), Totals(), NumberTask()
    folder = RunFolder.create(runs, "pipeline", "train", "")
    service = TinkerService(
        Address.of(url, None), "scripted", _capabilities(case.declared or case.snapshots)
    )
    operations = Operations(service, folder.ledger, folder.attempt, _VOCABULARY)
    rollout = ClientMultiTurnRollout(
        policy=service,
        chat=NumberChat(),
        task=task,
        envs=World(scripts=lambda episode: _episode(episode, case.turns(episode))),
        resources=RolloutResources(folder.ledger),
        concurrency=GROUPS * MEMBERS if case.saturated else 1024,
        observer=watch,
    )
    loop = TrainingLoop(
        plan=plan,
        rollout=rollout,
        task=task,
        service=service,
        operations=operations,
        folder=folder,
        observer=watch,
        stop=StopRequest(),
        totals=totals,
    )
    await service.connect()
    try:
        await operations.create_model(plan.model)
        await loop.run(await begin(folder, operations, History()))
        await operations.unload_model()
    finally:
        await service.close()
        folder.end("finished", None)
    return totals


def _experiment(case: Case) -> Experiment:
    return Experiment(
        name="pipeline",
        server=ServerConfig(base_model="scripted"),
        group=GroupConfig(size=MEMBERS, per_step=GROUPS),
        budget=replace(Experiment().budget, max_turns=1000, trajectory_tokens=2000),
        train=TrainConfig(steps=case.steps, max_policy_lag=case.lag, checkpoint_every=0),
        run=RunConfig(trajectories=True),
    )


def _capabilities(snapshots: Snapshots) -> Capabilities:
    return Capabilities(
        snapshots=snapshots,
        dedupes=True,
        policy_logprobs=True,
        reports_weights=True,
        full_training=True,
    )


def _episode(number: int, turns: int) -> Script:
    """``turns`` tool calls; members differ in their reward, so that every group is trained."""
    reward = float(number % MEMBERS)
    last = StepOutcome("20", reward, done=True)
    return Script(steps=[*[StepOutcome("20", 0.0, done=False)] * (turns - 1), last])


def cases() -> Iterator[Case]:
    for sampling, training in ((1.0, 1.0), (1.2, 0.6), (0.6, 1.2)):
        made = Case("equal, saturated", 0, equal(4), sampling / 4, training, saturated=True)
        yield made
        yield replace(made, lag=1)
        yield replace(made, lag=1, saturated=False, name="equal")
    tail = Case("heavy tail", 0, pareto(1.2, 40), 0.08, 0.6, steps=21)
    for lag in (0, 1, 2, 4):
        yield replace(tail, lag=lag)
    for snapshots in _SHORT_LIVED:
        yield Case("equal", 1, equal(4), 0.25, 1.0, snapshots=snapshots)
        yield replace(tail, lag=1, snapshots=snapshots)


def best(runs: Sequence[Figures]) -> Figures:
    """The quickest run, with what went wrong in all of them."""
    quickest = min(runs, key=lambda run: run.wall)
    return replace(
        quickest,
        stale=sum(run.stale for run in runs),
        failed_episodes=sum(run.failed_episodes for run in runs),
        drift=sum(run.drift for run in runs),
    )


def row(*cells: str) -> str:
    widths = (18, 12, 5, 7, 7, 7, 9, 10, 8, 10, 11, 6, 7, 6)
    return "".join(
        cell.ljust(width) if index < 2 else cell.rjust(width)
        for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )


def table_row(f: Figures) -> str:
    times = (f"{seconds:.3f}" for seconds in (f.sampling, f.training, f.wall))
    ratios = (f"{f.to_sum:.2f}", f"{f.to_max:.2f}")
    shares = (f"{f.trainer_busy:.0%}", f"{f.in_flight:.1f}")
    ages = f"{f.staleness:.2f}/{f.staleness_max:.0f}"
    counts = (ages, str(f.stale), str(f.failed_episodes), str(f.drift))
    return row(f.name, f.snapshots, str(f.lag), *times, *ratios, *shares, *counts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=3, help="runs of each case")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    asked = parser.parse_args()
    print(
        row("case", "snapshots", "lag", "S", "T", "wall", "/(S+T)", "/max(S,T)", "trainer",
            "in flight", "staleness", "stale", "failed",
            "drift")
    )  # fmt: skip
    measured = []
    for case in cases():
        measured.append(best([asyncio.run(measure(case)) for _ in range(asked.repeat)]))
        print(table_row(measured[-1]), flush=True)
    write(asked.json, "pipeline", [asdict(figures) for figures in measured])


if __name__ == "__main__":
    main()
