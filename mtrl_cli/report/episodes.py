"""The trajectories that a report shows: a sample of a run's, token by token.

A few steps are chosen, evenly from the first to the last; of each the groups with the best, the
worst and the most spread rewards; of each of these the best and the worst members. Advantages are
not recorded: they are computed again from the rewards, by the run's own form (see
`training.recorded`), and are those before token weights and without a KL term.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mtrl_cli.chat.tokenizer import load_tokenizer
from mtrl_cli.config.compose import compose
from mtrl_cli.config.resolve import resolve
from mtrl_cli.display.text import harmless
from mtrl_cli.display.words import outcome
from mtrl_cli.errors import MtrlError
from mtrl_cli.report.facts import RunFacts
from mtrl_cli.runs.trajectories import read_trajectories, trajectory_file
from mtrl_cli.training.plan import TrainingPlan
from mtrl_cli.training.recorded import recorded_advantages, recorded_batch

STEPS, MEMBERS = 6, 8
LONGEST = 4000
"""Tokens of one trajectory that are shown."""

Reader = Callable[[int], str]


def chosen_episodes(run: RunFacts) -> tuple[list[dict[str, Any]], str | None]:
    """The trajectories to show, as the page's script reads them, and why there are none or what
    of them is missing."""
    folder = run.record.path
    known = [commit.step for commit in run.history.commits if commit.trajectories is not None]
    steps = [step for step in known if trajectory_file(folder, step).is_file()]
    if not steps:
        return [], "The run wrote no trajectories (run.trajectories), or none of its steps stands."
    plan, read, note = _plan_and_reader(folder)
    shown: list[dict[str, Any]] = []
    for step in _spread(steps, STEPS):
        commit = run.history.at(step)
        assert commit is not None
        records = list(read_trajectories(trajectory_file(folder, step)))
        advantages: Mapping[tuple[int, int], float] = {}
        if plan is not None:
            batch = recorded_batch(plan, records, commit.groups)
            advantages = recorded_advantages(plan, batch)
        for record in _chosen(records):
            key = (record["group"], record["member"])
            advantage = None if record["reward"] is None else advantages.get(key)
            became = commit.groups.get(record["group"], "?")
            shown.append(_episode(step, record, became, advantage, read))
    return shown, note


def _plan_and_reader(run: Path) -> tuple[TrainingPlan | None, Reader, str | None]:
    """How the run computes advantages and what its tokens say, as far as it is to be had here."""
    try:
        experiment = resolve(compose(str(run / "config.yaml")), secrets=False)
    except MtrlError as error:
        return None, str, f"Neither advantages nor texts of tokens: {error}"
    plan = TrainingPlan(experiment)
    try:
        return plan, _token_reader(experiment.server.tokenizer), None
    except MtrlError as error:
        return plan, str, f"Tokens are shown as ids: {error}"


def _token_reader(name: str) -> Reader:
    """Raises: MtrlError."""
    tokenizer = load_tokenizer(name)
    known: dict[int, str] = {}

    def read(token: int) -> str:
        if token not in known:
            known[token] = tokenizer.decode([token])
        return known[token]

    return read


def _spread(steps: Sequence[int], count: int) -> list[int]:
    """At most ``count`` of the steps, evenly, the first and the last among them."""
    if len(steps) <= count:
        return list(steps)
    places = [round(i * (len(steps) - 1) / (count - 1)) for i in range(count)]
    return [steps[place] for place in dict.fromkeys(places)]


def _chosen(records: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    groups: dict[int, list[Mapping[str, Any]]] = {}
    for record in records:
        groups.setdefault(record["group"], []).append(record)
    scored = {g: r for g, rows in groups.items() if (r := _rewards(rows))}
    if not scored:
        wanted = sorted(groups)[:1]
    else:
        means = {group: sum(r) / len(r) for group, r in scored.items()}
        by_mean = sorted(scored, key=lambda group: (means[group], group))
        widest = max(scored, key=lambda group: (max(scored[group]) - min(scored[group]), -group))
        wanted = sorted({by_mean[0], by_mean[-1], widest})
    return [record for group in wanted for record in _members(groups[group])]


def _members(rows: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """All of them, or the best and the worst ones, in the order of members."""
    if len(rows) > MEMBERS:
        worth = sorted(rows, key=lambda r: (r["reward"] is not None, r["reward"] or 0.0))
        rows = [*worth[: MEMBERS // 2], *worth[-MEMBERS // 2 :]]
    return sorted(rows, key=lambda record: (record["member"], record["refill"]))


def _rewards(rows: Iterable[Mapping[str, Any]]) -> list[float]:
    return [row["reward"] for row in rows if row["reward"] is not None]


def _episode(
    step: int, record: Mapping[str, Any], became: str, advantage: float | None, read: Reader
) -> dict[str, Any]:
    ids = record["tokens"][:LONGEST]
    return {
        "step": step,
        "group": record["group"],
        "member": record["member"],
        "refill": record["refill"],
        "task": _plain(record["task"]["id"]),
        "policy": record["policy_step"],
        "outcome": outcome(became),
        "stop": record["stop"],
        "reward": record["reward"],
        "advantage": advantage,
        "failure": _plain(record["failure"] or "") or None,
        "ids": ids,
        "text": [_plain(read(token)) for token in ids],
        "spans": record["spans"],
        "logprobs": [round(value, 4) for value in record["logprobs"]],
        "above": [
            round(own - initial, 4)
            for own, initial in zip(record["logprobs"], record.get("reference", ()), strict=False)
        ],
        "cut": max(len(record["tokens"]) - LONGEST, 0),
        "turns": [_turn(turn) for turn in record["turns"]],
    }


def _turn(turn: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "text": _plain(turn["text"]),
        "tokens": turn["tokens"],
        "calls": [
            {
                "name": _plain(call["name"] + call.get("arguments", "")),
                "answer": _plain(call["answer"]),
                "reward": call["reward"],
                "done": call["done"],
                "error": call["error"],
            }
            for call in turn["calls"]
        ],
    }


def _plain(text: str) -> str:
    """Foreign text: lines stay lines, every other control character is written out."""
    return "\n".join(harmless(line) for line in text.split("\n"))
