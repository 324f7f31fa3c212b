"""What a screen knows and the run's files do not: the moment, as one JSON object.

A run writes it every few seconds beside its other files; `mtrl watch` puts it back into a state
of its own. It is a convenience for screens and nothing else reads it.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from mtrl_cli.display.pace import Eta
from mtrl_cli.display.state import RunState
from mtrl_cli.display.views import EvaluationView, GroupView, MemberView, Stopping

MOST_GROUPS = 200

_OF_THE_PLAN = ("concurrency", "drain_timeout", "total_groups", "groups_per_step", "figures")
"""What a watcher cannot know of the run's plan."""


def to_record(state: RunState, now: float) -> dict[str, Any]:
    """The moment. Times are told as ages, since two processes share no monotonic clock."""
    stopping, evaluation, eta = state.stopping, state.evaluation, state.eta(now)
    return {
        "phase": state.phase,
        "phase_seconds": now - state.phase_since,
        "tokens": state.tokens,
        "tokens_per_second": state.rates.tokens_per_second(now),
        "episodes": state.episodes,
        "episodes_per_minute": state.rates.episodes_per_minute(now),
        "failures": state.failures,
        "reissued": state.reissued,
        "waits": state.waits,
        "busy": state.busy,
        "eta": None if eta is None else asdict(eta),
        "plan": {name: getattr(state.plan, name) for name in _OF_THE_PLAN},
        "borrowed": dict(state.borrowed_by_kind()),
        "groups": [_group(group, now) for group in list(state.groups.values())[:MOST_GROUPS]],
        "lately": [_group(group, now) | {"outcome": group.outcome} for group in state.lately],
        "evaluation": None if evaluation is None else asdict(evaluation),
        "stopping": None
        if stopping is None
        else {"stage": stopping.stage, "cause": stopping.cause, "seconds": now - stopping.since},
    }


def restore(state: RunState, record: Mapping[str, Any], now: float) -> None:
    """Put the moment into ``state``.

    Raises:
        LookupError, TypeError, ValueError, AttributeError: it is not one of `to_record`'s.
    """
    plan = replace(state.plan, **{name: record["plan"][name] for name in _OF_THE_PLAN})
    groups = {view.group: view for view in (_view(one, now) for one in record["groups"])}
    lately = [
        replace(_view(one, now), ended=now, outcome=one["outcome"]) for one in record["lately"]
    ]
    stopping, evaluation, eta = record["stopping"], record["evaluation"], record["eta"]
    state.phase = str(record["phase"])
    state.phase_since = now - float(record["phase_seconds"])
    state.tokens, state.episodes = int(record["tokens"]), int(record["episodes"])
    state.failures, state.reissued = int(record["failures"]), int(record["reissued"])
    state.waits = record["waits"]
    state.rates.told = (
        float(record["tokens_per_second"]),
        float(record["episodes_per_minute"]),
    )
    state.told_busy = int(record["busy"])
    state.told_eta = Eta(**eta) if eta else None
    state.plan, state.groups = plan, groups
    state.lately.clear()
    state.lately.extend(lately)
    state.borrowed = {
        f"{kind}/{number}": (str(kind), None)
        for kind, count in record["borrowed"].items()
        for number in range(int(count))
    }
    state.evaluation = EvaluationView(**evaluation) if evaluation else None
    state.stopping = (
        Stopping(int(stopping["stage"]), str(stopping["cause"]), now - float(stopping["seconds"]))
        if stopping
        else None
    )


def _group(group: GroupView, now: float) -> dict[str, Any]:
    return {
        "group": group.group,
        "task": group.task,
        "policy": group.policy,
        "policy_step": group.policy_step,
        "size": group.size,
        "age": (now if group.ended is None else group.ended) - group.started,
        "tokens": group.tokens,
        "turns": group.turns,
        "retries": group.retries,
        "note": group.note,
        "members": {
            str(member): [view.reward, view.stop, view.turns, view.tokens]
            for member, view in group.members.items()
        },
    }


def _view(record: Mapping[str, Any], now: float) -> GroupView:
    return GroupView(
        group=int(record["group"]),
        task=str(record["task"]),
        policy=str(record["policy"]),
        policy_step=int(record["policy_step"]),
        size=int(record["size"]),
        started=now - float(record["age"]),
        tokens=int(record["tokens"]),
        turns=int(record["turns"]),
        retries=int(record["retries"]),
        note=record["note"],
        members={int(member): MemberView(*view) for member, view in record["members"].items()},
    )
