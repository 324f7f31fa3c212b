"""Making a step part of the run: one durable line in ``commits.jsonl``."""

from collections.abc import Mapping

from mtrl_cli.rollout.policy import PolicySnapshot, snapshot_name
from mtrl_cli.runs.commits import Commit
from mtrl_cli.runs.folder import RunFolder


def commit(
    folder: RunFolder,
    step: int,
    policy: PolicySnapshot,
    state: str | None,
    groups: Mapping[int, str],
    trajectories: str | None = None,
) -> None:
    """Commit ``step``; see `mtrl_cli.runs.commits.Commit`. Step 0 is the initial policy."""
    folder.ledger.sync()  # no commit without the calls that it rests on
    made = Commit(
        step=step,
        attempt=folder.attempt,
        policy=policy.uri,
        policy_step=policy.step,
        state=state,
        groups=groups,
        # An attempt publishes what it begins from, so the name is always one of its own.
        snapshot={"name": snapshot_name(folder.id, folder.attempt, policy.step)},
        trajectories=trajectories,
    )
    folder.commits.append(made.to_record(), durable=True)
    folder.update(policy=policy.uri, step=step)
