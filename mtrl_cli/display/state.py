"""The state that a screen shows, folded from events. Pure: no clock, no terminal.

`RunState.apply` is called for every event of a run, tens of thousands of times, so it only
counts. What takes longer (trends, estimates; rates in `Rates`) is computed when a screen is drawn.

Groups of an evaluation are games: thousands of groups of one, which are counted and not listed.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any

from mtrl_cli.display.pace import Eta, Pace
from mtrl_cli.display.plan import DisplayPlan
from mtrl_cli.display.rates import Rates
from mtrl_cli.display.views import EvaluationView, GroupView, MemberView, Stopping
from mtrl_cli.rollout.events import (
    BorrowChanged,
    GroupFinished,
    GroupStarted,
    MemberFinished,
    TurnSampled,
)
from mtrl_cli.training.events import (
    EVALUATION,
    Evaluated,
    EvaluationProgress,
    FolderMade,
    PhaseStarted,
    RunFailed,
    RunFinished,
    RunStarted,
    ServiceStrained,
    StepFinished,
)

NAMED = 20
"""Ids that are named of one kind of borrow; the ledger names all."""

LATELY = 100
"""Groups that are remembered when they have ended: as many as a tall terminal has lines."""


class RunState:
    """Everything a screen can say about a run."""

    def __init__(self, plan: DisplayPlan, now: float) -> None:
        self.plan = plan
        self.started = now
        self.run: RunStarted | None = None
        self.phase = "start-up"
        self.phase_since = now
        self.step = 0
        self.steps = 0
        self.policy: str | None = None
        self.first_policy: str | None = None
        """The policy that the first group of a step was sampled from."""
        self.rewards: list[float] = []
        self.metrics: Mapping[str, float] = {}
        self.audits: list[tuple[float, float]] = []
        """Largest and mean difference of each audited step."""
        self.step_seconds = 0.0
        self.tokens = 0
        self.episodes = 0
        self.failures = 0
        self.reissued = 0
        """Calls to the server that were made again."""
        self.waits: str | None = None
        """Why calls to the server wait at this moment."""
        self.groups: dict[int, GroupView] = {}
        self.lately: deque[GroupView] = deque(maxlen=LATELY)
        """Groups of a training that have ended, the latest one last."""
        self.finished_groups: list[GroupView] = []
        self.evaluation: EvaluationView | None = None
        self.cut_off: EvaluationView | None = None
        """The last evaluation that another phase has followed before its end."""
        self.evaluations: list[Evaluated] = []
        self.stopping: Stopping | None = None
        self.finished: RunFinished | None = None
        self.failed: RunFailed | None = None
        self.folder: str | None = None
        self.attempt = 1
        self.borrowed: dict[str, tuple[str, str | int | None]] = {}
        """Key → kind and, where it has one, the id that it has where it lives."""
        self._step_began = now
        self.rates = Rates(now)
        self.pace = Pace()
        self.told_busy: int | None = None
        """`busy`, where somebody else counts it."""
        self.told_eta: Eta | None = None
        """What the run itself expects, where another process carries it out."""
        self._handlers: dict[type, Callable[[Any, float], None]] = {
            TurnSampled: self._turn_sampled,
            GroupStarted: self._group_started,
            MemberFinished: self._member_finished,
            GroupFinished: self._group_finished,
            BorrowChanged: self._borrow_changed,
            ServiceStrained: self._service_strained,
            FolderMade: self._folder_made,
            RunStarted: self._run_started,
            PhaseStarted: self._phase_started,
            StepFinished: self._step_finished,
            EvaluationProgress: self._evaluation_progress,
            Evaluated: self._evaluated,
            RunFinished: self._run_finished,
            RunFailed: self._run_failed,
        }

    def apply(self, event: object, now: float) -> None:
        """Take one event in. Unknown events are not for this screen."""
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(event, now)

    def become(self, other: "RunState") -> None:
        """Know what ``other`` knows, and nothing else."""
        # The handlers are bound: those of the other one would count for it.
        own = {"_handlers": self._handlers}
        self.__dict__.update(other.__dict__ | own)

    # What a drawing asks.

    def eta(self, now: float) -> Eta | None:
        """How long the run takes from ``now``: its steps, and the evaluations that are due. None
        where that is not known: before the first step, after a stop request, of another process
        that does not tell."""
        if self.plan.watched or self.stopping is not None:
            return self.told_eta
        view = self.evaluation
        current = 0.0 if view is None else self.pace.rest(view.games, now)
        if self.plan.policies:
            return None if current is None else Eta(current)
        evaluates = self.phase == "evaluation"
        passed = 0.0 if evaluates else now - self._step_began
        steps = self.pace.steps(self.steps - self.step, passed)
        if not self.step or steps is None or current is None:
            return None
        due = self.pace.evaluations(self.plan.due(self.step, self.steps, self._evaluated_ones()))
        return Eta(steps + current + (due or 0.0), unmeasured=due is None)

    def _evaluated_ones(self) -> set[str]:
        """The labels of the evaluations that have begun."""
        found = {one.label for one in self.evaluations}
        return found if self.evaluation is None else found | {self.evaluation.label}

    def trend(self, steps: int) -> float | None:
        """Mean reward of the last ``steps`` steps less that of the ``steps`` before."""
        if len(self.rewards) < 2 * steps:
            return None
        last, before = self.rewards[-steps:], self.rewards[-2 * steps : -steps]
        return sum(last) / steps - sum(before) / steps

    @property
    def retries(self) -> int:
        """What was tried again: episodes of the groups in flight, and calls to the server."""
        return self.reissued + sum(group.retries for group in self.groups.values())

    @property
    def busy(self) -> int:
        """Trajectories that have not ended, waiting ones included."""
        if self.told_busy is not None:
            return self.told_busy
        view = self.evaluation
        games = 0 if view is None else max(view.started - view.done, 0)
        return games + sum(group.size - group.done for group in self.groups.values())

    def in_flight(self, event: TurnSampled | MemberFinished | GroupFinished) -> GroupView | None:
        """The listed group that ``event`` is about; a game's number may be a group's, too."""
        return None if event.stream == EVALUATION else self.groups.get(event.group)

    def borrowed_by_kind(self) -> Mapping[str, int]:
        """What is held, or may be: not known to be returned."""
        return Counter(kind for kind, _ in self.borrowed.values())

    def borrowed_names(self) -> list[str]:
        """The same, by kind and with the ids that are known: ``sandbox 2 (sb-1, sb-7)``."""
        ids: dict[str, list[str]] = {}
        for kind, name in self.borrowed.values():
            ids.setdefault(kind, []).extend([] if name is None else [str(name)])
        return [
            f"{kind} {count}" + _bracketed(ids[kind])
            for kind, count in sorted(self.borrowed_by_kind().items())
        ]

    # Events.

    def _turn_sampled(self, event: TurnSampled, now: float) -> None:
        tokens = event.tokens
        self.tokens += tokens
        self.rates.sampled(tokens, now)
        group = self.in_flight(event)
        if group is not None:
            group.tokens += tokens
            group.turns += 1

    def _group_started(self, event: GroupStarted, now: float) -> None:
        if event.stream == EVALUATION:
            if self.evaluation is not None:
                self.evaluation.started += 1
            return
        self.groups[event.group] = GroupView(
            event.group, event.task, event.policy, event.policy_step, event.size, now
        )
        if self.first_policy is None:
            self.first_policy = event.policy
        if self.policy is None:
            self.policy = event.policy

    def _member_finished(self, event: MemberFinished, now: float) -> None:
        failed = event.failure is not None or event.reward is None
        if not failed:
            self.rates.ended(now)
        if event.stream == EVALUATION:
            if self.evaluation is not None and event.reward is not None and not failed:
                self.evaluation.total_reward += event.reward
                self.evaluation.rewarded += 1
            return
        self.failures += failed
        group = self.in_flight(event)
        if failed:
            # The member is played again, or the group ends: either way it is not done.
            if group is not None:
                group.retries += 1
                group.note = event.failure
            return
        self.episodes += 1
        if group is not None:
            group.members[event.member] = MemberView(
                event.reward, event.stop, event.turns, event.tokens
            )

    def _group_finished(self, event: GroupFinished, now: float) -> None:
        if event.stream == EVALUATION:
            if self.evaluation is not None:
                self.evaluation.done += 1
                self.pace.game_ended(now)
            return
        group = self.groups.pop(event.group, None)
        if group is not None:
            group.ended, group.outcome = now, event.outcome
            (self.finished_groups if self.plan.keep_groups else self.lately).append(group)

    def _borrow_changed(self, event: BorrowChanged, now: float) -> None:
        if event.state == "released":
            self.borrowed.pop(event.key, None)
        else:
            self.borrowed[event.key] = (event.kind, event.id)

    def _service_strained(self, event: ServiceStrained, now: float) -> None:
        self.reissued, self.waits = event.reissued, event.waits

    def _folder_made(self, event: FolderMade, now: float) -> None:
        self.folder, self.attempt = event.folder, event.attempt

    def _run_started(self, event: RunStarted, now: float) -> None:
        self.run = event
        self.folder = event.folder
        self.steps, self.step = event.steps, event.step
        self.rewards = list(event.rewards)

    def _phase_started(self, event: PhaseStarted, now: float) -> None:
        if event.phase == "evaluation":
            self._begin_evaluation(event.step)
            self.pace.evaluates(now)
        else:
            self.cut_off, self.evaluation = self.evaluation or self.cut_off, None
        if event.phase == "sampling" and self.phase in ("start-up", "evaluation"):
            # What came before is no part of a step's duration.
            self._step_began = now
        self.phase, self.phase_since = event.phase, now

    def _begin_evaluation(self, step: int | None) -> None:
        if policies := self.plan.policies:
            total = policies * self.plan.games
            self.evaluation = EvaluationView("eval", total, mixed=policies > 1)
            return
        if self.step == 0 and not self.evaluations:
            label, games = "before", self.plan.games
        elif step is None or step >= self.steps:
            label, games = "after", self.plan.games
        else:
            label, games = f"step {step}", self.plan.games_during
        self.evaluation = EvaluationView(label, games)

    def _step_finished(self, event: StepFinished, now: float) -> None:
        self.step, self.steps = event.step, event.steps
        self.policy, self.metrics = event.policy, event.metrics
        self.step_seconds = _wall(event.metrics, now - self._step_began)
        self._step_began = now
        self.pace.stepped(self.step_seconds)
        if (value := event.metrics.get("reward")) is not None:
            self.rewards.append(value)
        if (most := event.metrics.get("parity_max")) is not None:
            self.audits.append((most, event.metrics.get("parity_mean", most)))

    def _evaluation_progress(self, event: EvaluationProgress, now: float) -> None:
        if self.evaluation is None:
            self.evaluation = EvaluationView(event.label, event.games)
        self.evaluation.label = event.label
        self.evaluation.done, self.evaluation.games = event.done, event.games

    def _evaluated(self, event: Evaluated, now: float) -> None:
        self.evaluations.append(event)
        if self.evaluation is not None:
            self.pace.evaluated(self.evaluation.games, now)
        self.evaluation = None

    def _run_failed(self, event: RunFailed, now: float) -> None:
        self.failed = event

    def _run_finished(self, event: RunFinished, now: float) -> None:
        self.finished = event


def _wall(metrics: Mapping[str, float], otherwise: float) -> float:
    """Seconds of a step as the run measured them: whoever hears of it later has no better."""
    if "seconds_sampling" not in metrics:
        return otherwise
    return metrics["seconds_sampling"] + metrics.get("seconds_training", 0.0)


def _bracketed(ids: list[str]) -> str:
    more = len(ids) - NAMED
    shown = sorted(ids)[:NAMED] + ([f"{more} more"] if more > 0 else [])
    return f" ({', '.join(shown)})" if shown else ""
