"""Where an attempt begins: at the initial policy, or where an earlier attempt left off.

The model on the server is fresh in both cases: nothing that an earlier attempt has asked for, and
that may still be executed, can reach it. A resumed attempt loads the state of its last standing
commit into it, with the optimizer's, and publishes what it has loaded under a name of its own;
the groups from here on are sampled from that snapshot. Only then are later commits voided: where
the state cannot be had, the run stands as it stood.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mtrl_cli.rollout.policy import PolicySnapshot, snapshot_name
from mtrl_cli.runs.commits import Commit, History, read_history
from mtrl_cli.runs.folder import RunFolder
from mtrl_cli.runs.takeover import go_back, states
from mtrl_cli.servers.errors import Refused
from mtrl_cli.training.commit import commit
from mtrl_cli.training.operations import Operations


@dataclass(frozen=True, slots=True)
class Start:
    """What training goes on from."""

    initial: PolicySnapshot
    """The policy of step 0: the KL reference, and the first one of comparisons."""
    policy: PolicySnapshot
    """The policy to sample from now."""
    history: History
    """The commits that stand."""

    @property
    def step(self) -> int:
        """How many steps are behind us."""
        return self.history.last.step if self.history.last else 0

    @property
    def committed(self) -> str | None:
        """The URI under which an earlier attempt committed `policy`; None in a first one."""
        return self.history.last.policy if self.history.last else None

    def groups(self, total: int) -> Iterator[int]:
        """The group ids below ``total`` that no standing commit has consumed, in order."""
        consumed = self.history.consumed
        return (group for group in range(total) if group not in consumed)


async def begin(
    folder: RunFolder, operations: Operations, history: History, *, store: Path | None = None
) -> Start:
    """Bring the fresh model of ``operations`` to the last commit of ``history``.

    ``store`` is where the embedded server keeps its weights, for messages.

    Raises:
        MtrlError: a training call failed or has an unknown outcome.
    """
    first, last = history.initial, history.last
    if first is None or last is None:
        initial = PolicySnapshot(await _publish(folder, operations, 0), 0)
        go_back(folder, history)
        commit(folder, 0, initial, None, {})
        return Start(initial, initial, history)
    await _load(folder, operations, last, store)
    policy = PolicySnapshot(await _publish(folder, operations, last.policy_step), last.policy_step)
    go_back(folder, history)
    folder.begun_at(policy.uri)
    return Start(PolicySnapshot(first.policy, 0), policy, history)


async def _load(
    folder: RunFolder, operations: Operations, begun: Commit, store: Path | None
) -> None:
    """Load the training state of a commit.

    Raises:
        Refused: the server does not have it, or cannot read it; the hint names the others.
    """
    assert begun.state is not None
    try:
        await operations.load_state(begun.state)
    except Refused as error:
        where = "" if store is None else f"; server.store is {store}"
        told = Refused(
            f"the training state of step {begun.step} was not loaded: {error}{where}",
            transient=error.transient, retry_after=error.retry_after, status=error.status,
        )  # fmt: skip
        stand = states(read_history(folder.path / "commits.jsonl"))
        others = ", ".join(str(step) for step in stand if step != begun.step)
        told.hint = f"begin at another state ({others}): mtrl train --resume RUN@STEP"
        raise told from error


async def _publish(folder: RunFolder, operations: Operations, step: int) -> str:
    return await operations.publish(snapshot_name(folder.id, folder.attempt, step))
