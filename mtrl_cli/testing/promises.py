"""What must hold of the rollout core, whatever happens to it: the checks of `simulation`.

Each check compares what the core says with the books of the world (`chaos`) and notes what does
not agree in `Chaos.violations`.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from mtrl_cli.rollout.client import RolloutStopped, Settlement
from mtrl_cli.rollout.events import BorrowChanged
from mtrl_cli.rollout.group import Group
from mtrl_cli.rollout.resources import RolloutResources
from mtrl_cli.testing.chaos import Chaos
from mtrl_cli.testing.schedule import Schedule

_NEXT_STATES: dict[str | None, set[str]] = {
    None: {"requested"},
    "requested": {"held", "returning", "released", "quarantined"},
    "held": {"returning", "quarantined"},
    "returning": {"released", "quarantined"},
    "quarantined": {"released"},
    "released": set(),
}


class Books:
    """A journal and an observer that check the life of every borrow."""

    def __init__(self, world: Chaos) -> None:
        self._world = world
        self.states: dict[str, str] = {}
        self.events: list[tuple[float, str, str]] = []
        """What changed, in order: time, borrow, state."""
        self.journal: dict[str, str] = {}

    def observe(self, event: object) -> None:
        if not isinstance(event, BorrowChanged):
            return
        state = self.states.get(event.key)
        if event.state not in _NEXT_STATES[state]:
            self._world.violate(f"borrow {event.key} went from {state} to {event.state}")
        self.states[event.key] = event.state
        self.events.append((asyncio.get_running_loop().time(), event.key, event.state))

    def borrow(self, key: str, state: str, **facts: Any) -> None:
        if state == "requested" and key in self._world.things:
            self._world.violate(f"{key} was made before its intent was recorded")
        if state == "held" and facts.get("id") != f"id-of-{key}":
            self._world.violate(f"{key} is held under the id {facts.get('id')}")
        if state == "quarantined" and not (facts.get("reason") and facts.get("remedy")):
            self._world.violate(f"{key} is quarantined without a reason or a remedy: {facts}")
        self.journal[key] = state


@dataclass
class Promises:
    """The checks of one schedule, and what they need to know about how it went."""

    schedule: Schedule
    world: Chaos
    books: Books
    resources: RolloutResources
    counts: Counter[str] = field(default_factory=Counter)
    delivered: dict[int, Group] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)
    """Group → the version under which it was admitted."""
    batches: set[int] = field(default_factory=set)
    """Groups of the batch form, which are no part of a settlement."""
    settlements: list[tuple[object, Settlement]] = field(default_factory=list)
    """Who was stopped, and what the caller got."""
    stopped: bool = False
    cancelled: bool = False
    closed: bool = False

    def delivers(self, groups: Iterable[Group]) -> None:
        for group in groups:
            number = group.admission.group
            if number in self.delivered:
                self.world.violate(f"group {number} was delivered twice")
            self.delivered[number] = group
            self._check_group(group)

    def delivers_step(self, step: int, groups: list[Group]) -> None:
        """``groups`` are trained by a step: the lag rule, and what was admitted until now."""
        plan = self.schedule
        self.delivers(groups)
        for group in groups:
            number = group.admission.group
            if not 0 <= (age := step - self.versions[number]) <= plan.lag:
                self.world.violate(f"step {step} trains group {number}, {age} versions old")
        may_be_short = plan.data is not None or self.closed or self.stopped
        if len(groups) != plan.per_step and not may_be_short:
            self.world.violate(f"step {step} has {len(groups)} groups, not {plan.per_step}")
        admitted = Counter(self.versions.values())
        for version in range(step + 1):
            batches = min(plan.lag + 1, plan.steps) if version == 0 else 1
            due = plan.per_step * batches if version + plan.lag < plan.steps or version == 0 else 0
            if admitted[version] > due or (admitted[version] < due and not may_be_short):
                self.world.violate(f"version {version} admitted {admitted[version]}, not {due}")

    def _check_group(self, group: Group) -> None:
        size, rule = self.schedule.size, self.schedule.rule
        members = [member.admission.member for member in group.members]
        attempts = (*group.members, *group.failures)
        tried = Counter(attempt.admission.member for attempt in attempts)
        needed = min(rule.floor, size) if rule.on_failure == "shrink" else size
        most = 1 + (rule.max_refills if rule.on_failure == "refill" else 0)
        admission = group.admission
        complaints = {
            "its admission changed": admission is not self.world.admitted.get(admission.group),
            "its members are not in order": members != sorted(set(members)),
            "an attempt is another group's": any(
                a.admission.group is not admission for a in attempts
            ),
            "a member is missing": set(tried) != set(range(size)),
            "a member has no reward": any(member.reward is None for member in group.members),
            "a failure has a reward": any(failure.reward is not None for failure in group.failures),
            "a failure has no text": any(not failure.failure for failure in group.failures),
            "a member was refilled too often": max(tried.values()) > most,
            "it is incomplete": group.failed is None and len(members) < needed,
            "it failed without a reason": group.failed == "",
        }
        for complaint, holds in complaints.items():
            if holds:
                self.world.violate(f"group {admission.group}: {complaint}")
        self.counts["groups failed" if group.failed else "groups complete"] += 1
        self.counts["members failed"] += len(group.failures)

    # --- the end --------------------------------------------------------------------------------

    def check_consumer(self, consumer: "asyncio.Task[None]") -> None:
        """It ended as its schedule explains, and soon after a bug that it could see."""
        plan, now = self.schedule, asyncio.get_running_loop().time()
        error = None if consumer.cancelled() else consumer.exception()
        self.counts[f"ended: {type(error).__name__ if error else consumer.cancelled()}"] += 1
        undisturbed = not (self.stopped or self.cancelled)
        if consumer.cancelled() and not self.cancelled:
            self.world.violate("the consumer was cancelled by nobody")
        if error is not None and not (
            self.is_bug(error) or (isinstance(error, RolloutStopped) and self.stopped)
        ):
            raise error
        if self.world.audible and undisturbed:
            bug = self.world.audible[0]
            # The group's settlement, the step that is being trained, the exit's settlement.
            bound = bug + (2 * plan.patience + 1) + plan.training + (3 * plan.patience + 1) + 0.1
            if error is None:
                self.world.violate(f"the consumer never saw the bug of {bug:g} s")
            elif now > bound and not self.batches:
                self.world.violate(f"the bug of {bug:g} s was seen at {now:g} s")
        if plan.driver and error is None and undisturbed and not self.closed:
            wanted = plan.per_step * plan.steps
            wanted = wanted if plan.data is None else min(wanted, plan.data)
            if sorted(self.delivered) != [*range(wanted)]:
                self.world.violate(f"trained {sorted(self.delivered)} of {wanted} groups")

    def is_bug(self, error: BaseException) -> bool:
        """Whether a bug of the world is, or explains, the error."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if error in self.world.raised:
            return True
        # A cancellation is made anew by every task that it passes through.
        cause = error.__cause__
        return isinstance(cause, asyncio.CancelledError) and any(
            isinstance(bug, asyncio.CancelledError) for bug in self.world.raised
        )

    def check_settlement(self) -> None:
        """Everything admitted was delivered, or is undelivered or dropped: one of them."""
        _, last = self.settlements[-1]
        seen: dict[int, Settlement] = {}
        for stopped, settlement in self.settlements:
            if seen.setdefault(id(stopped), settlement) is not settlement:
                self.world.violate("two callers of one stop saw two settlements")
            if (settlement.dropped, settlement.left) != (last.dropped, last.left):
                self.world.violate("the driver and its rollout saw two settlements")
        undelivered = [g for g in last.undelivered if g.admission.group not in self.delivered]
        for group in undelivered:
            self._check_group(group)
        fates = Counter([*self.delivered, *last.dropped, *(g.admission.group for g in undelivered)])
        for number in self.world.admitted:
            if fates[number] != 1 and number not in self.batches:
                self.world.violate(f"group {number} has {fates[number]} fates after stop")

    def check_borrows(self) -> None:
        """What is quarantined is what the world still counts as live; all else is released."""
        quarantined = {borrow.key for borrow in self.resources.quarantined}
        self.counts["quarantined"] += len(quarantined)
        if quarantined != self.world.live:
            self.world.violate(
                f"quarantined but not live: {sorted(quarantined - self.world.live)}; "
                f"live but not quarantined: {sorted(self.world.live - quarantined)}"
            )
        for borrow in self.resources.live:
            if borrow.key not in quarantined:
                self.world.violate(f"{borrow.key} is {borrow.state} after stop")
            elif not (borrow.reason and borrow.remedy):
                self.world.violate(f"{borrow.key} is quarantined without a reason or a remedy")
        if self.world.most_sampling > self.schedule.concurrency:
            self.world.violate(f"{self.world.most_sampling} episodes at once")

    def check_late(self) -> None:
        """Once nothing hangs any more, only what could not be closed is quarantined."""
        left = {borrow.key for borrow in self.resources.live}
        self.counts["released late"] += self.counts["quarantined"] - len(left)
        if left != self.world.live:
            self.world.violate(
                f"at the end {sorted(left)} are left, live {sorted(self.world.live)}"
            )
        for thing in self.world.things.values():
            if thing.made and thing.returned != 1:
                self.world.violate(f"{thing.key} was given back {thing.returned} times")
        for key, state in self.books.states.items():
            if state not in ("released", "quarantined"):
                self.world.violate(f"borrow {key} ended {state}")
            if self.schedule.external and self.books.journal.get(key) != state:
                self.world.violate(f"borrow {key} is {state}, its journal says otherwise")

    def check_tasks(self, before: "set[asyncio.Task[Any]]") -> None:
        """No task is left but those that work on what is quarantined."""
        left = asyncio.all_tasks() - before
        if left and not self.world.occupied:
            self.world.violate(f"{len(left)} tasks are left after stop: {left}")
