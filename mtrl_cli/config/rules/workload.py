"""How much a run is about to play, before it begins. No refill is counted."""

from dataclasses import dataclass

from mtrl_cli.config.schema import Experiment


@dataclass(frozen=True, slots=True)
class Begun:
    """What is behind a training that is resumed."""

    step: int = 0
    evaluated: bool = False
    """Its first policy needs no evaluation any more, or cannot have one."""
    cut_off: bool = False
    """An evaluation during training is made up for."""


FROM_THE_START = Begun()


@dataclass(frozen=True, slots=True)
class Workload:
    """Episodes, and how many of them are in flight at once."""

    trained: int
    """Episodes of groups."""
    trained_at_once: int
    games: int = 0
    """Episodes of evaluations."""
    games_at_once: int = 0

    @property
    def episodes(self) -> int:
        return self.trained + self.games

    @property
    def at_once(self) -> int:
        return max(self.trained_at_once, self.games_at_once)


def of_training(experiment: Experiment, begun: Begun = FROM_THE_START) -> Workload:
    """Of a training, or of what is left of it. Groups of later steps are in flight while a step
    trains, as many steps' as ``train.max_policy_lag`` allows; games during training are played
    beside them."""
    train, evaluation, most = experiment.train, experiment.eval, experiment.run.concurrency
    steps = max(train.steps - begun.step, 0)
    step = experiment.group.per_step * experiment.group.size
    trained = min((train.max_policy_lag + 1) * step, steps * step)
    ends = evaluation.games * (1 if begun.evaluated else 2)
    during = 0
    if evaluation.every:
        due = max((train.steps - 1) // evaluation.every - begun.step // evaluation.every, 0)
        during = (due + begun.cut_off) * evaluation.games_during
    beside = trained - step if trained > step else 0
    games = max(evaluation.games, evaluation.games_during + beside if during else 0)
    return Workload(steps * step, min(most, trained), ends + during, min(most, games))


def of_groups(experiment: Experiment, groups: int) -> Workload:
    """Of a rollout of so many groups."""
    played = groups * experiment.group.size
    return Workload(played, min(experiment.run.concurrency, played))


def of_games(experiment: Experiment, games: int) -> Workload:
    """Of an evaluation of so many games, over all its policies."""
    return Workload(0, 0, games, min(experiment.run.concurrency, games))


def environments(experiment: Experiment, played: int) -> int:
    """Environments made for so many episodes: one each, and two that compare a seed at start-up."""
    return played + 2 * experiment.env.check_seeds
