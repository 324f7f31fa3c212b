"""What a person is told of whole batches of episodes, a step's or an evaluation's: each thing once.

- Many of the episodes have failed, and why most of them did: once of the steps and once of the
  evaluations, as a policy may learn to fail; and again when half or more do.
- Hardly a turn ends in a call that could be executed (`calling`); not judged of a batch most of
  which failed, as the rest of it are episodes of an odd kind.
- The first steps had no group whose rewards differ, so nothing is learned from.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from mtrl_cli.config.rules.assumed import EMBEDDED_WINDOW
from mtrl_cli.config.schema import ServerConfig, ServerKind
from mtrl_cli.rollout.group import Group
from mtrl_cli.rollout.ports import ToolSpec
from mtrl_cli.training.events import EQUAL_REWARDS
from mtrl_cli.training.telling.calling import Calling
from mtrl_cli.training.telling.failing import Losses
from mtrl_cli.training.totals import TRAINED

FIRST = 3
"""Steps after which it is told that none of them had anything to learn from."""

_MOMENTS = {"before": "before training", "after": "after training"}


class Batches:
    """``tell`` hears the lines; ``more`` ends one about episodes that are saved."""

    def __init__(self, tell: Callable[[str], None], server: ServerConfig, more: str) -> None:
        self._tell = tell
        self._more = more
        self._calling = Calling(tell, server.renderer, embedded=embedded(server))
        self._losses = Losses()
        self._told_losses: set[tuple[bool, bool]] = set()
        """Of evaluations, and that most have failed."""
        self._steps = 0
        self._outcomes: Counter[str] = Counter()

    def gathered(self, groups: Sequence[Group], tools: Sequence[ToolSpec]) -> None:
        """A part of a batch; `ended` says when it is whole."""
        self._losses.gathered(groups)
        self._calling.gathered(groups, tools)

    def ended(self, name: str, tools: Sequence[ToolSpec], *, saved: bool = True) -> None:
        """The batch ``name`` is whole, and its episodes are ``saved`` in the run's folder: those
        of a training run's evaluations are not."""
        losses, self._losses = self._losses, Losses()
        told, of = losses.told(name), not saved
        if told is not None and not self._told_losses & {(of, True), (of, losses.most)}:
            self._told_losses.add((of, losses.most))
            self._tell(told)
        if losses.most:
            self._calling.forget()
        else:
            self._calling.ended(tools, self._more if saved else "")

    def evaluated(self, groups: Sequence[Group], tools: Sequence[ToolSpec], label: str) -> None:
        """One whole evaluation of a training run, whose episodes are not saved."""
        self.gathered(groups, tools)
        name = f"the evaluation {_MOMENTS.get(label, f'of {label}')}"
        self.ended(name, tools, saved=False)

    def stepped(
        self,
        step: int,
        groups: Sequence[Group],
        tools: Sequence[ToolSpec],
        outcomes: Mapping[int, str],
    ) -> None:
        """One whole step, counted from 1, and what became of its groups."""
        self.gathered(groups, tools)
        self.ended(f"step {step}", tools)
        if step > FIRST:
            return
        self._steps += 1
        self._outcomes.update(outcomes.values())
        told = untrained(self._outcomes) if self._steps == FIRST else None
        if told is not None:
            self._tell(told)


def embedded(server: ServerConfig) -> bool:
    """It serves the model that comes with mtrl."""
    return server.kind is ServerKind.local and server.base_model in EMBEDDED_WINDOW


def untrained(outcomes: Mapping[str, int]) -> str | None:
    """What to say of the first steps by how their groups came out; None where one was trained."""
    if outcomes.get(TRAINED):
        return None
    alike, others = outcomes.get(EQUAL_REWARDS, 0), _others(outcomes.items())
    if not alike:
        return f"the first {FIRST} steps had no group to train: {others}"
    equal = f"{alike:,} of equal rewards{others and f', {others}'}"
    return (
        f"the first {FIRST} steps had no group whose rewards differ: {equal}; that teaches nothing."
        " See whether the task's reward tells good episodes from bad ones;"
        " a larger group.size or group.temperature makes them differ more"
    )


def _others(outcomes: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in outcomes if reason != EQUAL_REWARDS)
