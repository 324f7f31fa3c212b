"""The trajectories that a report shows: a sample of a run's, token by token.

A few steps are chosen, evenly from the first to the last; of each the groups with the best, the
worst and the most spread rewards; of each of these the best and the worst members. A rollout counts
as one step. Of an evaluation some games are chosen, from the worst to the best: by their reward;
where two policies are compared, by what the one has more than the other, in the games that both
have ended.
Advantages are not recorded: they are computed again from the rewards, by the run's own form (see
`training.step.recorded`), and are those before token weights and without a KL term.

The sample has a size that does not grow with the run: what is longer than its share keeps its
beginning and its end, and says how much is left out.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtrl_cli.chat.tokenizer import load_tokenizer
from mtrl_cli.config.compose import compose
from mtrl_cli.config.resolve import resolve
from mtrl_cli.display.text import harmless
from mtrl_cli.display.words import outcome
from mtrl_cli.errors import MtrlError
from mtrl_cli.report.facts import RunFacts
from mtrl_cli.report.naming import told_apart
from mtrl_cli.report.played import evaluates, played_records, trains
from mtrl_cli.runs.shapes import read_episodes
from mtrl_cli.runs.trajectories import trajectory_file
from mtrl_cli.training.plan import TrainingPlan
from mtrl_cli.training.step.recorded import recorded_advantages, recorded_batch

STEPS, MEMBERS = 6, 8
GAMES = 24
"""Games of an evaluation, and groups of one."""
TOKENS, LONGEST = 200_000, 4000
"""Tokens of all trajectories on a page, and of one of them."""
CHARACTERS, LONGEST_TEXT = 600_000, 4000
"""Characters of what was said in all turns on a page, and in one saying."""
LEAST_TEXT = 80

Reader = Callable[[int], str]


@dataclass(frozen=True, slots=True)
class Sample:
    """Trajectories as the page's script reads them."""

    words: Mapping[int, str]
    """Token → its text; a token without one is shown as its id."""
    episodes: Sequence[Mapping[str, Any]]
    games: bool = False
    """They are games of an evaluation, from the worst to the best."""


@dataclass(frozen=True, slots=True)
class _Chosen:
    step: int
    record: Mapping[str, Any]
    outcome: str
    advantage: float | None
    policy: str | None = None
    """Its name, where it is not one of the run's own steps."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The trajectories of a run to show."""

    sample: Sample | None
    note: str | None
    """Why there are none, or what is not told of them."""
    lost: Sequence[str] = ()
    """Steps that are left out because their files are damaged, a sentence each."""


def chosen_episodes(run: RunFacts, share: float = 1.0) -> Chosen:
    """The trajectories to show.

    Args:
        run: whose.
        share: which part of a page they may fill, in (0, 1].
    """
    plan, read, note = _plan_and_reader(run.record.path)
    lost: list[str] = []
    if trains(run):
        known = [commit.step for commit in run.history.commits if commit.trajectories is not None]
        steps = [step for step in known if trajectory_file(run.record.path, step).is_file()]
        chosen = []
        for step in _spread(steps, STEPS):
            try:
                chosen += _of_step(run, step, plan)
            except MtrlError as error:
                lost.append(f"the trajectories of step {step} are left out: {error}")
    elif evaluates(run):
        chosen = _games(run)
    else:
        chosen = [_Chosen(0, record, "", None) for record in _chosen(played_records(run))]
    if not chosen:
        none = "There are none: they were switched off (run.trajectories), or no step stands."
        return Chosen(None, None if lost else none, lost)
    tokens = min(LONGEST, int(TOKENS * share) // len(chosen))
    said = sum(1 + len(turn["calls"]) for one in chosen for turn in one.record["turns"])
    text = max(min(LONGEST_TEXT, int(CHARACTERS * share) // max(said, 1)), LEAST_TEXT)
    episodes = [_episode(one, tokens, text) for one in chosen]
    words = {token: _plain(read(token)) for episode in episodes for token in episode["ids"]}
    return Chosen(Sample(words if read is not str else {}, episodes, evaluates(run)), note, lost)


def _games(run: RunFacts) -> list[_Chosen]:
    """Games of an evaluation; of two policies both games, that of the evaluated one first."""
    games: dict[int, dict[str, Mapping[str, Any]]] = {}
    policies = dict.fromkeys([str(run.state.get("policy"))])
    for record in played_records(run):
        policies[record["policy"]] = None
        held = games.setdefault(record["group"], {})
        if record["reward"] is not None or record["policy"] not in held:
            held[record["policy"]] = record  # of several attempts the one that counts

    def worth(game: int) -> tuple[float, ...]:
        rewards = [games[game][policy]["reward"] for policy in policies if policy in games[game]]
        return (rewards[0] - sum(rewards[1:]), rewards[0], game)

    ended = {
        game: len(held)
        for game, held in games.items()
        if all(record["reward"] is not None for record in held.values())
    }
    whole = [game for game, count in ended.items() if count == max(ended.values())]
    shown = _spread(sorted(whole, key=worth), GAMES) or sorted(games)[:1]
    named = told_apart(list(policies))
    return [
        _Chosen(0, games[game][policy], "", None, named[policy])
        for game in shown
        for policy in policies
        if policy in games[game]
    ]


def _of_step(run: RunFacts, step: int, plan: TrainingPlan | None) -> list[_Chosen]:
    commit = run.history.at(step)
    assert commit is not None
    records = list(read_episodes(trajectory_file(run.record.path, step)))
    advantages: Mapping[tuple[int, int], float] = {}
    if plan is not None:
        advantages = recorded_advantages(plan, recorded_batch(plan, records, commit.groups))
    return [
        _Chosen(
            step,
            record,
            outcome(commit.groups.get(record["group"], "?")),
            None
            if record["reward"] is None
            else advantages.get((record["group"], record["member"])),
        )
        for record in _chosen(records)
    ]


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
    """At most ``count`` of the steps (or groups), evenly, the first and the last among them."""
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
        if all(len(rows) == 1 for rows in groups.values()):  # a rollout of groups of one
            return [groups[group][0] for group in sorted(_spread(by_mean, GAMES))]
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


def _episode(chosen: _Chosen, tokens: int, text: int) -> dict[str, Any]:
    """One trajectory, at most ``tokens`` of it and ``text`` characters of each saying.

    ``gap`` are the first token that is left out and the first that is shown again; ``logprobs``
    and ``above`` are those of the sampled tokens that are shown.
    """
    record = chosen.record
    gap = _gap(len(record["tokens"]), tokens)
    sampled = [
        place
        for kind, start, end in record["spans"]
        if kind == "sampled"
        for place in range(start, end)
    ]
    drawn = [index for index, place in enumerate(sampled) if not gap[0] <= place < gap[1]]
    logprobs, initial = record["logprobs"], record.get("reference") or ()
    return {
        "step": chosen.step,
        "group": record["group"],
        "member": record["member"],
        "refill": record["refill"],
        "task": _plain(record["task"]["id"]),
        "policy": chosen.policy or f"of step {record['policy_step']}",
        "outcome": chosen.outcome,
        "stop": record["stop"],
        "reward": record["reward"],
        "advantage": chosen.advantage,
        "failure": _plain(record["failure"] or "") or None,
        "ids": record["tokens"][: gap[0]] + record["tokens"][gap[1] :],
        "gap": gap,
        "spans": record["spans"],
        "sampled": len(sampled),
        "logprobs": [round(logprobs[index], 4) for index in drawn],
        "above": [round(logprobs[i] - initial[i], 4) for i in drawn if i < len(initial)],
        "turns": [_turn(turn, text) for turn in record["turns"]],
    }


def _gap(length: int, most: int) -> tuple[int, int]:
    """Which tokens are left out, from and to: those in the middle."""
    if length <= most:
        return length, length
    head = most // 2
    return head, length - (most - head)


def _turn(turn: Mapping[str, Any], text: int) -> dict[str, Any]:
    return {
        "text": _shortened(turn["text"], text),
        "tokens": turn["tokens"],
        "calls": [
            {
                "name": _shortened(call["name"] + call.get("arguments", ""), text),
                "answer": _shortened(call["answer"], text),
                "reward": call["reward"],
                "done": call["done"],
                "error": call["error"],
            }
            for call in turn["calls"]
        ],
    }


def _shortened(text: str, most: int) -> str:
    start, end = _gap(len(text), most)
    if start == end:
        return _plain(text)
    return f"{_plain(text[:start])}\n… {end - start:,} characters …\n{_plain(text[end:])}"


def _plain(text: str) -> str:
    """Foreign text: lines stay lines, every other control character is written out."""
    return "\n".join(harmless(line) for line in text.split("\n"))
