"""`ClientMultiTurnRollout`: many episodes at once, orchestrated from the client's side.

The batch form: give it group admissions, get complete groups back, in the order they were
given. All episodes run as tasks of one event loop; ``concurrency`` bounds how many are in
flight. If the caller is cancelled, every episode is cancelled and has returned what it borrowed
before the cancellation goes on.
"""

import asyncio
from collections.abc import Sequence

from mtrl_cli.rollout.admission import GroupAdmission
from mtrl_cli.rollout.episode import Parts
from mtrl_cli.rollout.events import Observer, ignore
from mtrl_cli.rollout.group import FailureRule, Group, play_group
from mtrl_cli.rollout.ports import Chat, EnvironmentFactory, Policy, Task


class ClientMultiTurnRollout:
    """Plays groups of multi-turn episodes under immutable policies."""

    def __init__(
        self,
        *,
        policy: Policy,
        chat: Chat,
        task: Task,
        envs: EnvironmentFactory,
        concurrency: int = 256,
        failure_rule: FailureRule | None = None,
        observer: Observer = ignore,
    ) -> None:
        self._parts = Parts(policy, chat, task, envs, observer)
        self._rule = failure_rule or FailureRule()
        self._concurrency = concurrency

    async def run(self, admissions: Sequence[GroupAdmission]) -> list[Group]:
        """Play all groups; returns when every one is complete or failed.

        A failing episode ends in its group's record, not in an exception.
        """
        slots = asyncio.Semaphore(self._concurrency)
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(play_group(admission, self._parts, slots, self._rule))
                for admission in admissions
            ]
        return [task.result() for task in running]

    def run_sync(self, admissions: Sequence[GroupAdmission]) -> list[Group]:
        """`run` for code without an event loop."""
        return asyncio.run(self.run(admissions))
