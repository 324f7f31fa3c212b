"""What a resumed run may change of its configuration.

What decides the numbers that training produces is fixed when a run begins; a change there makes
another experiment, and is refused. What only decides how far, how often it is measured, or how the
machinery behaves may change when the user insists (``--force``). `RULES` says which is which, by
the longest key that a changed key begins with; a key that no rule names is fixed.

Two things are not compared: secrets, because the key to a server is no part of an experiment, and
``run.dir``, because a run stays where it is.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mtrl_cli.config.compose import Composed
from mtrl_cli.config.schema import Schedule
from mtrl_cli.config.secrets import leaves


@dataclass(frozen=True, slots=True)
class Rule:
    """Whether a key may change when the user insists, and why, or why not."""

    safe: bool
    why: str


def _fixed(why: str) -> Rule:
    return Rule(False, why)


def _free(why: str) -> Rule:
    return Rule(True, why)


RULES: dict[str, Rule] = {
    "": _fixed("it decides what is trained"),
    "name": _fixed("it is the experiment that this run is of"),
    "seed": _fixed("every task, every sample and the model's first weights come from it"),
    "policy": _fixed("a run trains the policy that it began with"),
    "server": _fixed("the policy's tokens and weights depend on it"),
    "server.base_url": _free("the server may have moved, if it kept its saved states"),
    "server.store": _free("the store may have moved, if it kept its saved states"),
    "server.connections": _free("how many requests are in flight changes no result"),
    "server.sample_timeout": _free("how long is waited changes no result"),
    "server.training_timeout": _free("how long is waited changes no result"),
    "server.snapshots": _free("it says what is known of the server"),
    "server.dedupes": _free("it says what is known of the server"),
    "server.leaks_gradients": _free("it says what is known of the server"),
    "env": _fixed("it is the world that was trained in"),
    "env.threads": _free("how many environments work at once changes no result"),
    "env.open_timeout": _free("how long is waited changes no result"),
    "env.reset_timeout": _free("how long is waited changes no result"),
    "env.step_timeout": _free("how long is waited changes no result"),
    "env.close_timeout": _free("how long is waited changes no result"),
    "task": _fixed("it is what was trained on"),
    "group": _fixed("the groups that were committed were made with it"),
    "budget": _fixed("it decides how episodes end, and so their rewards"),
    "train": _fixed("the committed steps were made with it"),
    "train.steps": _free("a run may go on for longer"),
    "train.checkpoint_every": _free("how often a state is saved changes no result"),
    "eval": _free("measuring changes nothing that is measured"),
    "audit": _free("measuring changes nothing that is measured"),
    "sinks": _free("who is told changes no result"),
    "sink": _free("who is told changes no result"),
    "run": _free("where and how a run is recorded changes no result"),
}

_RECORDED_ANEW = ("eval.games", "eval.seed", "eval.greedy")
_NOT_COMPARED = ("run.dir",)


@dataclass(frozen=True, slots=True)
class Difference:
    """One key that differs: its values as written, and the rule that it falls under."""

    key: str
    before: Any
    now: Any
    rule: Rule

    def describe(self) -> str:
        needs = "needs --force" if self.rule.safe else f"refused: {self.rule.why}"
        return f"{self.key}: {_shown(self.before)} → {_shown(self.now)} ({needs})"


def differences(before: Composed, now: Composed, committed: int) -> list[Difference]:
    """The keys that differ, in the order of their names.

    Args:
        before: the run's configuration.
        now: the one that is to go on.
        committed: the steps that the run has committed.
    """
    old, new = dict(_values(before)), dict(_values(now))
    return [
        Difference(key, old.get(key), new.get(key), _rule(key, now, committed))
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    ]


def evaluates_anew(found: list[Difference]) -> bool:
    """Whether what was evaluated cannot be compared with what will be."""
    return any(difference.key in _RECORDED_ANEW for difference in found)


def _values(composed: Composed) -> Iterator[tuple[str, Any]]:
    for key, value, secret in leaves(composed.container):
        if not secret and key not in _NOT_COMPARED:
            yield key, value


def _rule(key: str, now: Composed, committed: int) -> Rule:
    if key == "train.steps":
        return _steps(now, committed)
    name = key.partition("[")[0]
    while name and name not in RULES:
        name = name.rpartition(".")[0]
    return RULES[name]


def _steps(now: Composed, committed: int) -> Rule:
    train = now.container["train"]
    if isinstance(train["steps"], int) and train["steps"] < committed:
        return _fixed(f"{committed} steps are committed")
    if train["schedule"] != Schedule.constant.value:
        return _fixed(f"the {train['schedule']} schedule of the learning rate depends on it")
    return RULES["train.steps"]


def _shown(value: Any) -> str:
    return "null" if value is None else str(value)
