"""What a run has consumed so far."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mtrl_cli.rollout.group import Group


@dataclass(slots=True)
class Totals:
    """Counts over all steps; ``skipped`` counts groups that were not trained, by reason."""

    steps: int = 0
    episodes: int = 0
    sampled_tokens: int = 0
    skipped: dict[str, int] = field(default_factory=dict)

    def consume(self, groups: Iterable[Group], skipped: Mapping[str, int]) -> None:
        """Count the episodes of ``groups``."""
        members = [member for group in groups for member in group.members]
        self.episodes += len(members)
        self.sampled_tokens += sum(member.tokens.sampled_count for member in members)
        for reason, count in skipped.items():
            self.skipped[reason] = self.skipped.get(reason, 0) + count
