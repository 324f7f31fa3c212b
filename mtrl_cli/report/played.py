"""What a run has played that trains nothing: a rollout, or an evaluation of its own."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mtrl_cli.report.facts import RunFacts
from mtrl_cli.runs.shapes import read_episodes
from mtrl_cli.training.evaluation.statistics import Mean, mean_of
from mtrl_cli.training.telling.reading import trajectory_files


@dataclass(frozen=True, slots=True)
class Played:
    """Episodes that ended with a reward, what was sampled in them, and those that failed."""

    reward: Mean | None
    tokens: int
    failed: int


def trains(run: RunFacts) -> bool:
    return bool(run.state.get("kind", "train") == "train")


def evaluates(run: RunFacts) -> bool:
    """Whether it is an evaluation of its own (`mtrl eval`)."""
    return run.state.get("kind") == "eval"


def played_records(run: RunFacts) -> Iterator[Mapping[str, Any]]:
    """The episodes of a run that trains nothing, in the order of its files."""
    for file in trajectory_files(run.record.path):
        yield from read_episodes(file)


def played(run: RunFacts) -> Played:
    rewards, tokens, failed = [], 0, 0
    for record in played_records(run):
        failed += record["failure"] is not None
        if record["reward"] is not None:
            rewards.append(float(record["reward"]))
            tokens += len(record["logprobs"])
    return Played(mean_of(rewards) if rewards else None, tokens, failed)
