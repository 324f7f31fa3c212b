"""What was played in an evaluation, game by game; its figures, and its pairs with another one.

A game that failed has no reward. It is left out of the figures, and of both
sides of a comparison, and counted; an unfinished episode counts with its ``unfinished_reward``.

The record of an evaluation is one file, so that a later one, also of a resumed run, can be paired
with it.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mtrl_cli.errors import MtrlError
from mtrl_cli.rollout.group import Group
from mtrl_cli.rollout.ports import Task
from mtrl_cli.rollout.task_fault import MEND_IT, TaskBrokenError, TaskFault, own_code
from mtrl_cli.rollout.trajectory import Stop, Trajectory
from mtrl_cli.runs.files import write_document
from mtrl_cli.training.evaluation.statistics import mean_of, share_interval
from mtrl_cli.training.events import Comparison, Evaluated

PassRule = Callable[[float], bool]


@dataclass(frozen=True, slots=True)
class Game:
    """One game of an evaluation."""

    index: int
    reward: float | None
    """Of the whole episode; None when it failed."""
    stop: str
    passed: bool = False
    turns: int = 0
    invalid: int = 0
    """Turns that did not end in tool calls which the environment executed."""


@dataclass(frozen=True, slots=True)
class Played:
    """The games of one policy. ``seed`` and ``temperature`` say which games, and how."""

    label: str
    policy: str
    seed: int
    temperature: float
    games: tuple[Game, ...]

    @property
    def scored(self) -> list[Game]:
        return [game for game in self.games if game.reward is not None]

    @property
    def rewards(self) -> dict[int, float]:
        return {game.index: game.reward for game in self.games if game.reward is not None}

    def figures(self, versus: Comparison | None = None) -> Evaluated:
        """What is reported of these games; one of them at least has a reward."""
        scored = self.scored
        mean = mean_of(list(self.rewards.values()))
        passed, turns = sum(game.passed for game in scored), sum(game.turns for game in scored)
        return Evaluated(
            label=self.label,
            policy=self.policy,
            mean=mean.value,
            se=mean.se,
            games=mean.count,
            invalid_call_share=sum(game.invalid for game in scored) / turns if turns else 0.0,
            interval=mean.interval,
            passed=passed,
            pass_interval=share_interval(passed, len(scored)),
            stops=dict(Counter(game.stop for game in scored).most_common()),
            unfinished=sum(game.stop != Stop.DONE.value for game in scored),
            failed=len(self.games) - len(scored),
            temperature=self.temperature,
            versus=versus,
        )


def pass_rule(task: Task) -> PassRule:
    """When an episode counts as passed: the task's own ``passed(reward)``, else reward > 0.

    The rule raises TaskBrokenError where the task's raises.
    """
    rule = getattr(task, "passed", None)
    if not callable(rule):
        return _above_zero

    def passed(reward: float) -> bool:
        try:
            with own_code(task, "passed"):
                return bool(rule(reward))
        except TaskFault as fault:
            raise TaskBrokenError(f"whether a game is passed: {fault}", fault.trace) from fault

    return passed


def game_of(group: Group, passed: PassRule) -> Game:
    """The game that a group of one has played."""
    index = group.admission.group
    if group.failed is not None or not group.members:
        return Game(index, None, group.failed or Stop.CANCELLED.value)
    (member,) = group.members
    assert member.reward is not None
    return Game(
        index=index,
        reward=member.reward,
        stop=member.stop.value,
        passed=passed(member.reward),
        turns=len(member.turns),
        invalid=_invalid(member),
    )


def compare(new: Played, old: Played) -> Comparison | None:
    """``new`` against ``old`` on the games that both have played; None where there are none.

    Both must have played the same games in the same way: seed and temperature.
    """
    if (new.seed, new.temperature) != (old.seed, old.temperature):
        return None
    mine, theirs = new.rewards, old.rewards
    shared = sorted(mine.keys() & theirs.keys())
    if not shared:
        return None
    differences = [mine[index] - theirs[index] for index in shared]
    mean = mean_of(differences)
    both = {game.index for game in new.games} & {game.index for game in old.games}
    return Comparison(
        against=old.policy,
        label=old.label,
        pairs=mean.count,
        left_out=len(both) - mean.count,
        mean=mean.value,
        se=mean.se,
        interval=mean.interval,
        wins=sum(difference > 0 for difference in differences),
        ties=sum(difference == 0 for difference in differences),
        losses=sum(difference < 0 for difference in differences),
    )


def step_label(step: int) -> str:
    """Of the evaluation of a step's policy during training."""
    return f"step {step}"


class Evaluations:
    """The evaluations of one run, each in a file of its own: ``evaluations/LABEL.json``."""

    def __init__(self, run: Path) -> None:
        self._folder = run / "evaluations"

    def record(self, played: Played, against: str | None = None) -> Evaluated:
        """Write an evaluation down, and report it, paired with the one labelled ``against``."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        text = json.dumps(_record(played), separators=(",", ":"))
        write_document(self._path(played.label), text + "\n")
        old = self.read(against) if against is not None else None
        return played.figures(compare(played, old) if old is not None else None)

    def read(self, label: str) -> Played | None:
        """An evaluation that was written down.

        Raises:
            MtrlError: its file is damaged.
        """
        path = self._path(label)
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            games = tuple(Game(*row) for row in record.pop("games"))
            return Played(**record, games=games)
        except FileNotFoundError:
            return None
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise MtrlError(
                f"{path} is damaged: {error}; put it back from a copy, or remove it and go without "
                "the comparison"
            ) from error

    def _path(self, label: str) -> Path:
        return self._folder / f"{label.replace(' ', '-')}.json"


def evaluation_metrics(result: Evaluated) -> dict[str, float]:
    """What metrics.jsonl holds of an evaluation during training; names in docs/run-folder.md."""
    figures: dict[str, float | None] = {
        "eval/mean": result.mean,
        "eval/se": result.se,
        "eval/pass_rate": result.passed / result.games,
        "eval/games": result.games,
        "eval/failed": result.failed,
    }
    if result.versus is not None:
        figures["eval/gain"] = result.versus.mean
        figures["eval/gain_se"] = result.versus.se
    return {name: value for name, value in figures.items() if value is not None}


def invalid_share(games: Iterable[Trajectory]) -> float:
    """The share of turns that did not end in a tool call that the environment executed."""
    found = list(games)
    turns = sum(len(game.turns) for game in found)
    return sum(map(_invalid, found)) / turns if turns else 0.0


def unplayable(what: str, groups: Sequence[Group]) -> MtrlError:
    """Nothing could be played: ``what``, and why the first failed attempt failed."""
    failed = (failure for group in groups for failure in group.failures if failure.failure)
    first = next(failed, None)
    error = MtrlError(f"{what}: {first.failure if first else 'unknown reason'}")
    error.hint = MEND_IT if first and first.trace else None
    return error


def _invalid(game: Trajectory) -> int:
    return sum(not turn.calls or any(call.error for call in turn.calls) for turn in game.turns)


def _above_zero(reward: float) -> bool:
    return reward > 0


def _record(played: Played) -> Mapping[str, Any]:
    """Rows in the order of `Game`'s fields."""
    facts = asdict(played)
    facts["games"] = [list(game.values()) for game in facts["games"]]
    return facts
