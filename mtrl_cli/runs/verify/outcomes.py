"""The outcome of a group, derived once more from its recorded trajectories.

This is what `rollout.group` and `training.step.groups` decide, said again over what is on disk.
What cannot be derived, as a declared value is not known, is None.
"""

from collections import Counter
from collections.abc import Sequence

from mtrl_cli.runs.verify.declared import Declared
from mtrl_cli.runs.verify.episodes import Episode

_ROUNDING = 1e-9
"""Spread of a group's rewards, relative to the largest, that is no difference."""


def outcome(episodes: Sequence[Episode], declared: Declared, *, trains: bool) -> str | None:
    """``trained``, ``constant_reward`` or the reason why the group was skipped; ``complete``
    where nothing is trained."""
    members = [episode for episode in episodes if not episode.failed]
    needed = _needed(declared)
    if needed is None:
        return None
    if len(members) < needed:
        return _most_frequent([episode for episode in episodes if episode.failed])
    return _trained(members, declared) if trains else "complete"


def _needed(declared: Declared) -> int | None:
    """How many members make a group complete."""
    if declared.size is None or declared.on_failure is None:
        return None
    if declared.on_failure == "shrink":
        return None if declared.floor is None else min(declared.floor, declared.size)
    return declared.size


def _trained(members: Sequence[Episode], declared: Declared) -> str | None:
    if declared.on_truncated is None or declared.skips_truncated is None:
        return None
    whole = [member for member in members if not member.truncated]
    masked = len(whole) < len(members)
    if declared.skips_truncated and masked:
        return "model_truncated"
    usable = whole if declared.on_truncated == "mask" else members
    masked = len(usable) < len(members)
    if not any(member.logprobs for member in usable):
        return "model_truncated" if masked else "no_trained_token"
    rewards = [member.reward for member in usable if member.reward is not None]
    equal = not rewards or max(rewards) - min(rewards) <= _ROUNDING * max(map(abs, rewards))
    return "constant_reward" if equal else "trained"


def _most_frequent(failures: Sequence[Episode]) -> str | None:
    counts = Counter(failure.refusal or failure.stop for failure in failures)
    return counts.most_common(1)[0][0] if counts else None
