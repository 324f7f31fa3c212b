"""Where a run's time went, as far as it was recorded."""

from collections.abc import Sequence
from dataclasses import dataclass

from mtrl_cli.report.facts import RunFacts
from mtrl_cli.runs.registry import RunRecord
from mtrl_cli.training.telling.reading import last_seen

LEAST = 0.05
"""Seconds from which on a part is told."""


@dataclass(frozen=True, slots=True)
class Share:
    """Seconds spent on something."""

    name: str
    seconds: float
    note: str


def wall_shares(run: RunFacts) -> Sequence[Share]:
    """The wall time of the steps that stand, and of what was around them.

    Waiting for groups is time in which the loop had nothing to train: all of sampling with
    ``max_policy_lag: 0``, else what training did not hide. Training calls are those of the
    ledger, voided steps included.
    """
    training = run.total("seconds_training")
    parts = [
        Share("initial policy", run.total("seconds_reference"), "its logprobs, for the KL penalty"),
        Share("forward/backward", run.seconds("forward_backward"), "training calls"),
        Share("optimizer step", run.seconds("optim_step"), "training calls"),
        Share("publishing", run.seconds("publish"), "snapshots"),
        Share("saving states", run.seconds("save_state"), "for a resume"),
        Share("trajectories", run.total("seconds_files"), "their files"),
    ]
    inside = sum(share.seconds for share in parts)
    shares = [
        Share(
            "waiting for groups", run.total("seconds_sampling"), "sampling not hidden by training"
        ),
        *parts,
        Share("rest of the steps", max(training - inside, 0.0), _rest(run)),
    ]
    whole = _whole(run.record)
    if whole is not None and not run.rollbacks and len(run.state.get("resumed") or ()) == 0:
        told = sum(share.seconds for share in shares)
        shares.append(
            Share("around the steps", max(whole - told, 0.0), "start-up, evaluation, shutdown")
        )
    return [share for share in shares if share.seconds >= LEAST]


def _rest(run: RunFacts) -> str:
    """What is not told apart; older runs did not measure as much."""
    measured = any("seconds_files" in line for line in run.steps)
    return "batches, audit, commits" if measured else "batches, initial policy, audit, files"


def episode_shares(run: RunFacts) -> Sequence[Share]:
    """What an episode waited for, mean over the run's episodes; empty for older runs."""
    lines = [line for line in run.steps if "seconds_policy" in line]
    episodes = sum(line["episodes"] for line in lines)
    if not episodes:
        return []
    return [
        Share(name, sum(line.get(key, 0.0) * line["episodes"] for line in lines) / episodes, note)
        for name, key, note in (
            ("the policy's turns", "seconds_policy", "the server samples"),
            ("its environment", "seconds_environment", "open, reset, tool calls"),
        )
    ]


def _whole(run: RunRecord) -> float | None:
    """Seconds from the run's beginning to its end; None while it runs."""
    created = run.state.get("created")
    if run.status == "running" or not isinstance(created, int | float):
        return None
    return last_seen(run) - created
