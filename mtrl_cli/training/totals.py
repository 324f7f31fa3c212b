"""What a run has consumed so far."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mtrl_cli.runs.commits import History

if TYPE_CHECKING:
    from mtrl_cli.rollout.group import Group

TRAINED = "trained"


@dataclass(slots=True)
class Totals:
    """Counts over all steps; ``skipped`` counts groups that were not trained, by reason."""

    steps: int = 0
    episodes: int = 0
    failed: int = 0
    """Episodes without a reward, which were played again or left out."""
    sampled_tokens: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    rewards: list[float] = field(default_factory=list)
    """The mean reward of each step that earlier attempts have committed."""

    @classmethod
    def of(cls, history: History, metrics: Iterable[Mapping[str, Any]]) -> "Totals":
        """The counts of the commits that stand, from them and the lines of ``metrics.jsonl``."""
        totals = cls()
        for line in history.of(metrics):
            totals.episodes += int(line.get("episodes", 0))
            totals.failed += int(line.get("failed_episodes", 0))
            totals.sampled_tokens += int(line.get("tokens_sampled", 0))
            if (reward := line.get("reward")) is not None:
                totals.rewards.append(float(reward))
        for commit in history.commits:
            totals.steps += commit.step > 0
            totals._skip(how for how in commit.groups.values() if how != TRAINED)
        return totals

    def consume(self, groups: "Sequence[Group]", skipped: Mapping[str, int]) -> None:
        """Count the episodes of ``groups``."""
        members = [member for group in groups for member in group.members]
        self.episodes += len(members)
        self.failed += sum(len(group.failures) for group in groups)
        self.sampled_tokens += sum(member.tokens.sampled_count for member in members)
        self._skip(reason for reason, count in skipped.items() for _ in range(count))

    def _skip(self, reasons: Iterable[str]) -> None:
        for reason in reasons:
            self.skipped[reason] = self.skipped.get(reason, 0) + 1
