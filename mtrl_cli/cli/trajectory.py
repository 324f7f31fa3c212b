"""``mtrl trajectory RUN [GROUP[/MEMBER]]``: what was said and done, turn by turn.

Everything that a model or an environment wrote is neutralised. On a terminal the parts are told
apart by colour as the training mask tells them apart: what was **sampled** (trained) is green, a
**prompt** dim, a **bridge** (tool results, the next turn's opener; not trained) cyan.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mtrl_cli.display.terminal import Screen, abilities, columns
from mtrl_cli.display.text import harmless, policy_name, reward, table
from mtrl_cli.display.words import reasons
from mtrl_cli.display.wrapping import HANGING, LABEL, wrapped
from mtrl_cli.errors import UsageError
from mtrl_cli.rollout.trajectory import FAILED
from mtrl_cli.runs.registry import RunRecord, find_run, read_run
from mtrl_cli.runs.trajectories import read_trajectories, step_of
from mtrl_cli.training.telling.reading import trajectory_files

if TYPE_CHECKING:
    from mtrl_cli.display.lines import Redact

Record = dict[str, Any]


class Part(NamedTuple):
    """A line of what is shown, however long it is."""

    text: str
    kind: str = ""
    """Of which part of the training it is, if of one."""
    indent: int = HANGING
    """Columns by which its second line is indented on a terminal."""


Paint = Callable[[str, str], str]
Decode = Callable[[Sequence[int]], str]

_LONGEST_TASK = 20
"""Characters of a task's id on a terminal; elsewhere it is never cut."""

_HEADS = ("group", "step", "task", "n", "mean", "worst", "best", "tokens", "ends")

_COLOURS = {"sampled": "32", "prompt": "2", "bridge": "36"}


def show_trajectories(
    asked: str, which: str | None, runs: Path, *, tokens: bool, as_json: bool
) -> int:
    """Print the trajectories of a group, of one of its members, or a list of groups; the exit
    code.

    Raises:
        NoSuchRun: there is no such run, or several.
        UsageError: the run has no such group or member, or no trajectories.
    """
    run = find_run(runs, asked)
    group, member = _wanted(which)
    files = trajectory_files(run.path)
    if not files:
        yet = run.status == "running"
        why = "yet: they are written at the end of a step" if yet else "(see run.trajectories)"
        raise UsageError(f"{run.id} has no trajectories {why}")
    found = [
        (file, record)
        for file in files
        for record in read_trajectories(file)
        if group in (None, record["group"])
    ]
    # Groups and members as they are numbered, and attempts at each in the order they were made.
    found.sort(key=lambda one: (one[0], *(one[1][key] for key in ("group", "member", "refill"))))
    there = found
    if member is not None:
        found = [one for one in there if one[1]["member"] == member]
    if not found:
        raise UsageError(f"{run.id} has no trajectory {which}; {_instead(run, group, there)}")
    screen = Screen(sys.stdout)
    if as_json:
        _print_json(screen, found, whole=group is not None)
    elif group is None:
        for line in table(list(_rows(found)), columns(), cut=[_HEADS.index("task")]):
            screen.line(harmless(line))
    else:
        _print_episodes(screen, run, found, tokens=tokens)
    return 0


def show_episodes(folder: Path, most: int, redact: "Redact") -> None:
    """Print the first ``most`` episodes of a rollout that is over, turn by turn: those that did not
    fail, where there are any."""
    run = read_run(folder)
    found = [(file, one) for file in trajectory_files(run.path) for one in read_trajectories(file)]
    whole = [one for one in found if one[1]["stop"] not in FAILED] or found
    screen = Screen(sys.stdout)
    if whole:
        screen.line()
        _print_episodes(screen, run, whole[:most], redact=redact)


def _print_episodes(
    screen: Screen,
    run: RunRecord,
    found: Sequence[tuple[Path, Record]],
    *,
    tokens: bool = False,
    redact: "Redact" = str,
) -> None:
    decode = _decoder(run)
    paint = _paint if abilities().colour else _plain
    width = columns()
    for number, (file, record) in enumerate(found):
        if number:
            screen.line()
        for part in _episode(file, record, tokens=tokens, decode=decode):
            text = redact(part.text)
            for line in wrapped(text, width, part.indent) if width else [text]:
                screen.line(paint(part.kind, line) if part.kind else line)


def _wanted(which: str | None) -> tuple[int | None, int | None]:
    if which is None:
        return None, None
    group, slash, member = which.partition("/")
    if not group.isdecimal() or (slash and not member.isdecimal()):
        raise UsageError(f"{which!r} names no trajectory; write GROUP or GROUP/MEMBER, as 12/3")
    return int(group), int(member) if slash else None


def _instead(run: RunRecord, group: int | None, there: Sequence[tuple[Path, Record]]) -> str:
    """What can be asked for, where a group or a member of it is not written."""
    if not there:
        return f"mtrl trajectory {run.id} lists the groups that are written"
    members = sorted({record["member"] for _, record in there})
    return f"of group {group} it has " + ", ".join(f"{group}/{member}" for member in members)


def _name(record: Record) -> str:
    """``8/1``, and which attempt at the member it is, where that is not all there is to say."""
    name, failed = f"{record['group']}/{record['member']}", record["stop"] in FAILED
    if not failed and not record["refill"]:
        return name
    return f"{name} (attempt {record['refill'] + 1}{', failed' if failed else ''})"


def _print_json(screen: Screen, found: Sequence[tuple[Path, Record]], *, whole: bool) -> None:
    """One object a line: the record as it is in the file, or without what is long."""
    long = () if whole else ("tokens", "spans", "logprobs", "opening", "turns")
    for file, record in found:
        told = {key: value for key, value in record.items() if key not in long}
        screen.line(json.dumps({"file": file.name, **told}, separators=(",", ":")))


def _rows(found: Sequence[tuple[Path, Record]]) -> Iterator[list[str]]:
    """One row a group."""
    longest = _LONGEST_TASK if columns() else None
    yield [*_HEADS]
    groups: dict[tuple[str, int], list[Record]] = {}
    for file, record in found:
        groups.setdefault((_step(file), record["group"]), []).append(record)
    for (step, group), members in groups.items():
        rewards = [one["reward"] for one in members if one["reward"] is not None]
        yield [
            str(group),
            step,
            harmless(members[0]["task"]["id"], longest),
            str(len({one["member"] for one in members})),
            reward(sum(rewards) / len(rewards) if rewards else None),
            reward(min(rewards, default=None), 2),
            reward(max(rewards, default=None), 2),
            f"{sum(len(one['tokens']) for one in members):,}",
            reasons(Counter(one["stop"] for one in members)),
        ]


def _step(file: Path) -> str:
    step = step_of(file)
    return "-" if step is None else str(step)


def _episode(file: Path, record: Record, *, tokens: bool, decode: Decode | None) -> Iterator[Part]:
    yield Part(
        harmless(
            f"{_name(record)}  step {_step(file)}  task {record['task']['id']}"
            f"  policy {policy_name(record['policy'])}"
        )
    )
    yield Part(harmless(_outcome(record)))
    for message in record["opening"]:
        yield _labelled(harmless(str(message.get("role", "?"))), _content(message), "prompt")
    sampled = [(start, end) for kind, start, end in record["spans"] if kind == "sampled"]
    for number, turn in enumerate(record["turns"], 1):
        yield Part("")
        yield Part(harmless(f"turn {number}, {turn['tokens']} tokens sampled"))
        said = turn["text"]
        if decode is not None and number <= len(sampled):
            start, end = sampled[number - 1]
            said = decode(record["tokens"][start:end])  # with its tool calls, as it was sampled
        yield _labelled("assistant", harmless(said) or "(nothing beside the call)", "sampled")
        for call in turn["calls"]:
            yield _labelled("call", harmless(_called(call)), "sampled")
            marks = [f"reward {reward(call['reward'], 2)}"] if call["reward"] is not None else []
            marks += [word for word in ("done", "error") if call[word]]
            told = f" [{', '.join(marks)}]" if marks else ""
            yield _labelled("tool", f"{harmless(str(call['answer']))}{told}", "bridge")
    if tokens:
        yield Part("")
        yield from _tokens(record, decode)


def _labelled(label: str, text: str, kind: str) -> Part:
    return Part(f"{label:>{LABEL - 2}}  {text}", kind, LABEL)


def _called(call: Record) -> str:
    """A call with its arguments, where they are recorded."""
    arguments = call.get("arguments", "")
    return f"{call['name']} {arguments}".rstrip()


def _outcome(record: Record) -> str:
    """How it ended, and its tokens by what they are."""
    counts = dict.fromkeys(_COLOURS, 0)
    for kind, start, end in record["spans"]:
        counts[kind] += end - start
    counted = ", ".join(f"{kind} {count:,}" for kind, count in counts.items())
    logprobs = record["logprobs"]
    told = [f"stop {record['stop']}", f"reward {reward(record['reward'])}", f"tokens: {counted}"]
    if logprobs:
        mean = sum(logprobs) / len(logprobs)
        told.append(f"logprobs {min(logprobs):.3g} to {max(logprobs):.3g}, mean {mean:.3g}")
    if record["refill"]:
        told.append(f"refill {record['refill']}")
    told += [f"{key}: {record[key]}" for key in ("failure", "refusal") if record[key]]
    return "; ".join(told)


def _content(message: Record) -> str:
    content = message.get("content")
    return harmless(content if isinstance(content, str) else json.dumps(content))


def _tokens(record: Record, decode: Decode | None) -> Iterator[Part]:
    """Every token: its place, id, text, and what it is; the sampled ones with their logprob."""
    logprobs = iter(record["logprobs"])
    yield Part(f"{'place':>6} {'id':>7}  {'logprob':>9}  what      text")
    for kind, start, end in record["spans"]:
        for place in range(start, end):
            token = record["tokens"][place]
            logprob = f"{next(logprobs):.4f}" if kind == "sampled" else ""
            text = harmless(repr(decode([token]))) if decode else ""
            line = f"{place:>6} {token:>7}  {logprob:>9}  {kind:<8}  {text}"
            yield Part(line.rstrip(), kind)


def _decoder(run: RunRecord) -> Decode | None:
    """The text of a token, where the run's tokenizer is to be had."""
    from mtrl_cli.errors import MtrlError
    from mtrl_cli.training.telling.retelling import decoder_of

    try:
        return decoder_of(run.path)
    except MtrlError as error:
        reason = " ".join(str(error).split())
        Screen(sys.stderr).prose(harmless(f"tokens are shown without their text: {reason}"))
        return None


def _paint(kind: str, text: str) -> str:
    return f"\x1b[{_COLOURS[kind]}m{text}\x1b[0m"


def _plain(kind: str, text: str) -> str:
    return text
