"""What becomes of groups, in words: one table for the screens and the report.

Files and configuration keep the names (``constant_reward`` in groups.jsonl and ``train.skip``); on
a screen such a name would read like a rule that was set.
"""

from collections.abc import Iterable, Mapping

from mtrl_cli.display.text import harmless
from mtrl_cli.training.events import EQUAL_REWARDS

_NO_KL = "no advantage"
_OUTCOMES = {
    EQUAL_REWARDS: (
        "equal rewards",
        f"{_NO_KL}; the KL term stays, unless train.skip leaves the group out",
    ),
    "model_truncated": ("cut by a budget", "a member ran out of tokens"),
    "no_trained_token": ("nothing sampled", "no token that could be trained"),
    "env_failure": ("environment failed", ""),
    "policy_failure": ("server failed", "no turn could be sampled"),
    "no_sample": ("no sample", "the policy returned something else"),
    "timeout": ("too late", "the deadline of an episode passed"),
}


def outcome(reason: str) -> str:
    """What became of a group, in words."""
    return _OUTCOMES.get(reason, (reason.replace("_", " "), ""))[0]


def because(reason: str, *, kl: bool) -> str:
    """What that means, where it needs saying, in a run with or without a KL term."""
    return _NO_KL if reason == EQUAL_REWARDS and not kl else _OUTCOMES.get(reason, ("", ""))[1]


def outcomes(counts: Mapping[str, int]) -> str:
    """Counted outcomes in words: ``equal rewards 3, too late 1``."""
    return _told((outcome(reason), count) for reason, count in counts.items())


def reasons(counts: Mapping[str, int]) -> str:
    """Counted names as they stand in the files: ``done 310, max_turns 2``."""
    return _told(counts.items())


def _told(counts: Iterable[tuple[str, int]]) -> str:
    """The most frequent first."""
    ordered = sorted(counts, key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{harmless(name)} {count:,}" for name, count in ordered)
