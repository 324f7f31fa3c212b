"""`StreamingDriver`: an endless supply of groups for training, none of them ever too old.

**Versions.** A version is a published policy, counted in training steps. Groups come in batches
of ``per_step``, batch k for step k. With ``lag`` = `max_policy_lag`:

- batch k is admitted under version max(0, k − lag), as soon as that version is published. So
  version 0 admits lag + 1 batches, and every later version exactly one;
- a step takes ``per_step`` groups of the oldest version that is left, in the order of completion
  within that version. It never takes newer ones instead: every group of them would leave an older
  one to a later step, and the last of those would be too old.

Together: while a step trains, ``lag`` batches are being sampled; the step that makes version v + 1
leaves nothing on a version ≤ v − lag, so no group is trained more than ``lag`` versions after its
own; no group is thrown away for its age; and a straggler of version 0 is overtaken by as many
steps as the lag allows. A group always finishes, because its members have deadlines; a failed
group is consumed like any other. ``lag`` 0 is synchronous.

**Servers** that cannot keep old snapshots (`newest_only`, `live`) need `quiesce` before what
changes the weights: it waits until nothing is in flight. Admission is closed meanwhile anyway,
since only `publish` admits.

**Group ids** come from an iterable, in its order: by default 0, 1, 2, …; a run that is resumed
gives those that are left.

Concurrency, back-pressure and delivery are `ClientMultiTurnRollout`'s; at most
(lag + 1) · per_step groups are admitted and not consumed.
"""

import itertools
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from types import TracebackType

from mtrl_cli.rollout.admission import GroupAdmission
from mtrl_cli.rollout.client import ClientMultiTurnRollout, RolloutStopped, Settlement
from mtrl_cli.rollout.group import Group
from mtrl_cli.rollout.policy import PolicySnapshot
from mtrl_cli.rollout.settle import finish

Admit = Callable[[int, PolicySnapshot], GroupAdmission | None]
"""(group id, policy) → the group's admission, or None at the end of the data."""


class StreamingDriver:
    """Feeds training steps from a rollout; see the module's docstring.

    ``steps`` bounds the batches that are admitted; None leaves the end to ``admit`` and to the
    ids in ``groups`` (None: all from 0).
    """

    def __init__(
        self,
        rollout: ClientMultiTurnRollout,
        admit: Admit,
        initial: PolicySnapshot,
        *,
        per_step: int,
        lag: int = 0,
        steps: int | None = None,
        groups: Iterable[int] | None = None,
    ) -> None:
        self._rollout = rollout
        self._admit = admit
        self._policy = initial
        self._per_step = per_step
        self._lag = lag
        self._steps = steps
        self._version = 0
        self._batches = 0
        self._ids = iter(itertools.count() if groups is None else groups)
        self._ended = False
        self._versions: dict[int, int] = {}
        """Group id → version, of groups that were admitted and not taken."""
        self._waiting: list[Group] = []
        """Finished groups that no step has taken, in order of completion."""
        self._settlement: Settlement | None = None

    @property
    def version(self) -> int:
        """The newest version."""
        return self._version

    @property
    def exhausted(self) -> bool:
        """Nothing is left to take, and nothing will be admitted."""
        return not self._versions and (self._ended or self._all_batches_admitted)

    def close_admission(self) -> None:
        """Admit nothing more; what was admitted can still be taken."""
        self._ended = True

    async def take(self) -> list[Group]:
        """The groups of the next step; fewer than ``per_step`` only at the end, none after it.

        Raises:
            RolloutStopped: the rollout was stopped, and the step's groups with it.
            the error of a group whose code raised.
        """
        self._admit_due()
        self._waiting += self._rollout.poll()
        oldest = min(self._versions.values(), default=0)
        wanted = min(self._per_step, list(self._versions.values()).count(oldest))
        while len(ready := self._finished_on(oldest)) < wanted:
            arrived = await self._rollout.collect(1)
            self._waiting += arrived
            if not arrived and len(self._finished_on(oldest)) < wanted:
                raise RolloutStopped("the groups of the next step were dropped by a stop")
        taken = ready[:wanted]
        for group in taken:
            self._waiting.remove(group)
            del self._versions[_id(group)]
        return taken

    def publish(self, policy: PolicySnapshot) -> None:
        """A step has been trained on what was taken; ``policy`` is the newest version.

        A step that trained nothing makes a version too, with the policy unchanged.
        """
        self._version += 1
        self._policy = policy
        self._admit_due()

    async def quiesce(self) -> None:
        """Wait until nothing is in flight. What has finished can still be taken."""
        while arrived := await self._rollout.collect(1):
            self._waiting += arrived

    async def groups(self) -> AsyncIterator[Group]:
        """One step's groups after the other, as one stream; for a consumer that publishes as
        it goes."""
        while batch := await self.take():
            for group in batch:
                yield group

    async def __aenter__(self) -> "StreamingDriver":
        try:
            self._admit_due()
        except BaseException:
            await finish(self.stop())
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await finish(self.stop())

    async def stop(self) -> Settlement:
        """Cancel what is in flight and settle it; every caller sees one settlement."""
        self._ended = True
        settled = await self._rollout.stop(cancel=True)
        if self._settlement is None:
            finished = {
                _id(group): group
                for group in (*self._waiting, *settled.undelivered)
                if _id(group) in self._versions
            }
            self._settlement = replace(settled, undelivered=tuple(finished.values()))
        return self._settlement

    @property
    def _all_batches_admitted(self) -> bool:
        return self._steps is not None and self._batches >= self._steps

    def _admit_due(self) -> None:
        """Admit every batch whose version is there: batch k under version max(0, k - lag)."""
        while self._batches <= self._version + self._lag:
            if self._ended or self._all_batches_admitted or self._rollout.stopped:
                return
            self._batches += 1
            for _ in range(self._per_step):
                group = next(self._ids, None)
                admission = None if group is None else self._admit(group, self._policy)
                if admission is None:
                    self._ended = True
                    return
                self._versions[admission.group] = self._version
                self._rollout.admit(admission)

    def _finished_on(self, version: int) -> list[Group]:
        return [group for group in self._waiting if self._versions[_id(group)] == version]


def _id(group: Group) -> int:
    return group.admission.group
