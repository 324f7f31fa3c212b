"""One line of a trajectory file: its shape, and the token and turn rules.

- spans tile the tokens: one prompt, then sampled and bridge in turn;
- every sampled token has one finite logprob ≤ `LOGPROB_ALLOWANCE`, no other token has one;
- ids are within the vocabulary; turns agree with the sampled spans in number and length;
- ``done`` is latched: only the last call of an episode may say so, and then it ends it;
- the reward is null exactly for a failed episode, else finite; after ``done`` it is the sum of
  the calls' rewards;
- what was sampled is within the budgets.

Where the run's tokenizer, template and task are at hand (`Retelling`), the tokens must also be
what these make of the recorded text, span by span.
"""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

from mtrl_cli.rollout.tokens import LOGPROB_ALLOWANCE
from mtrl_cli.rollout.trajectory import FAILED, TRUNCATED, Stop
from mtrl_cli.runs.verify.declared import Declared

_STOPS = frozenset(stop.value for stop in Stop)
_FAILED = frozenset(stop.value for stop in FAILED)
_TRUNCATED = frozenset(stop.value for stop in TRUNCATED)
_NEXT = {"prompt": ("sampled",), "sampled": ("bridge",), "bridge": ("sampled",)}


class Retelling(Protocol):
    """What the run's own tokenizer, template and task say of an episode's text."""

    @property
    def vocabulary(self) -> int:
        """Every id is below it."""
        ...

    @property
    def unfinished_reward(self) -> float: ...

    def task(self, kind: str, seed: int, group: int) -> str:
        """The id of the task sample of a group, in a run of this kind and seed."""
        ...

    def prompt(self, opening: Sequence[Mapping[str, Any]]) -> Sequence[int]:
        """The ids of a conversation's opening."""
        ...

    def said(self, ids: Sequence[int]) -> "Said":
        """A sampled turn as it reads."""
        ...

    def bridge(self, ids: Sequence[int], calls: Sequence["Call"]) -> Sequence[int]:
        """What the template puts after a sampled turn whose calls were answered."""
        ...


@dataclass(frozen=True, slots=True)
class Said:
    """A sampled turn as text, and its tool calls: name, and whether it could not be executed.

    ``calls`` is None where a harness decides what is called.
    """

    text: str
    calls: Sequence[tuple[str, bool]] | None


class Malformed(Exception):  # noqa: N818
    """A line lacks a key, or a value is of another type than it must be."""


@dataclass(frozen=True, slots=True)
class Span:
    kind: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    answer: str
    reward: float
    done: bool
    error: bool


@dataclass(frozen=True, slots=True)
class Turn:
    text: str
    tokens: int
    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Episode:
    """One trajectory as it was written."""

    line: int
    run: str
    group: int
    member: int
    refill: int
    task: str
    task_seed: int
    policy: str
    policy_step: int
    stop: str
    reward: float | None
    refusal: str | None
    tokens: Sequence[int]
    spans: tuple[Span, ...]
    logprobs: Sequence[float]
    reference: Sequence[float] | None
    """The initial policy's logprobs of the same tokens, where a KL penalty asked for them."""
    opening: Sequence[Mapping[str, Any]]
    turns: tuple[Turn, ...]

    @property
    def failed(self) -> bool:
        return self.stop in _FAILED

    @property
    def truncated(self) -> bool:
        return self.stop in _TRUNCATED

    @property
    def sampled(self) -> tuple[Span, ...]:
        return tuple(span for span in self.spans if span.kind == "sampled")

    @property
    def prompt(self) -> Sequence[int]:
        return self.tokens[: self.spans[0].end] if self.spans else ()

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(call for turn in self.turns for call in turn.calls)


def episode(line: int, record: Mapping[str, Any]) -> Episode:
    """Read one line.

    Raises:
        Malformed: naming the key.
    """
    task = _of(record, "task", dict)
    return Episode(
        line=line,
        run=_of(record, "run", str),
        group=_of(record, "group", int),
        member=_of(record, "member", int),
        refill=_of(record, "refill", int),
        task=_of(task, "id", str),
        task_seed=_of(task, "seed", int),
        policy=_of(record, "policy", str),
        policy_step=_of(record, "policy_step", int),
        stop=_of(record, "stop", str),
        reward=None if record.get("reward", 0) is None else _number(record, "reward"),
        refusal=None if record.get("refusal") is None else _of(record, "refusal", str),
        tokens=_all(record, "tokens", int),
        spans=tuple(_span(span) for span in _of(record, "spans", list)),
        logprobs=_all(record, "logprobs", float, int),
        reference=_all(record, "reference", float, int) if "reference" in record else None,
        opening=_all(record, "opening", dict),
        turns=tuple(_turn(turn) for turn in _all(record, "turns", dict)),
    )


def flaws(found: Episode, declared: Declared, retelling: Retelling | None) -> Iterator[str]:
    """What is wrong with one episode, a line each."""
    tiled = True
    for flaw in _span_flaws(found):
        tiled = False
        yield flaw
    yield from _id_flaws(found, retelling)
    yield from _logprob_flaws(found)
    yield from _end_flaws(found)
    yield from _reward_flaws(found, retelling)
    if tiled:
        yield from _turn_flaws(found)
        yield from _budget_flaws(found, declared)
        if retelling is not None:
            yield from _text_flaws(found, retelling)


# --- shape ----------------------------------------------------------------------------------


def _of(record: Mapping[str, Any], key: str, *types: type) -> Any:
    value = record.get(key)
    # A bool is an int to Python, and never to us.
    wrong = (isinstance(value, bool) and bool not in types) or (float in types and _beyond(value))
    if wrong or not isinstance(value, types):
        raise Malformed(f"{key} is {_shown(value) if key in record else 'missing'}")
    return value


def _beyond(value: object) -> bool:
    """Whether it is a whole number that no float can hold."""
    return isinstance(value, int) and abs(value) > sys.float_info.max


def _number(record: Mapping[str, Any], key: str) -> float:
    return float(_of(record, key, float, int))


def _all(record: Mapping[str, Any], key: str, *types: type) -> list[Any]:
    values: list[Any] = _of(record, key, list)
    for index, value in enumerate(values):
        if not isinstance(value, types) or isinstance(value, bool) or _beyond(value):
            raise Malformed(f"{key}[{index}] is {_shown(value)}")
    return values


def _span(value: Any) -> Span:
    match value:
        case [str(kind), int(start), int(end)]:
            return Span(kind, start, end)
    raise Malformed(f"spans holds {_shown(value)}")


def _turn(value: Mapping[str, Any]) -> Turn:
    calls = tuple(_call(call) for call in _all(value, "calls", dict))
    return Turn(_of(value, "text", str), _of(value, "tokens", int), calls)


def _call(value: Mapping[str, Any]) -> Call:
    name, answer = _of(value, "name", str), _of(value, "answer", str)
    if "arguments" in value:
        _of(value, "arguments", str)
    done, error = _of(value, "done", bool), _of(value, "error", bool)
    return Call(name, answer, _number(value, "reward"), done, error)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "…"


# --- tokens ---------------------------------------------------------------------------------


def _span_flaws(found: Episode) -> Iterator[str]:
    spans, length = found.spans, len(found.tokens)
    if not spans or spans[0].kind != "prompt" or spans[0].start != 0:
        yield "the spans do not begin with a prompt at token 0"
        return
    if any(span.start > span.end for span in spans):
        yield "a span ends before it starts"
    for before, after in pairwise(spans):
        if after.start != before.end:
            yield f"a span ends at {before.end}, and the next one starts at {after.start}"
        if after.kind not in _NEXT.get(before.kind, ()):
            yield f"a {after.kind} span follows a {before.kind} span"
    if spans[-1].end != length:
        yield f"the spans end at {spans[-1].end}, but there are {length} tokens"


def _id_flaws(found: Episode, retelling: Retelling | None) -> Iterator[str]:
    most = math.inf if retelling is None else retelling.vocabulary - 1
    for index, token in enumerate(found.tokens):
        if not 0 <= token <= most:
            yield f"token {index} is {token}, which is outside 0 to {most:g}"
            return


def _logprob_flaws(found: Episode) -> Iterator[str]:
    sampled = sum(span.end - span.start for span in found.sampled)
    if sampled != len(found.logprobs):
        yield f"{sampled} sampled tokens have {len(found.logprobs)} logprobs"
    for index, logprob in enumerate(found.logprobs):
        if not (math.isfinite(logprob) and logprob <= LOGPROB_ALLOWANCE):
            yield f"logprob {index} is {logprob:g}, not finite and ≤ 0"
            return
    if found.reference is not None:
        yield from _reference_flaws(found, found.reference)


def _reference_flaws(found: Episode, reference: Sequence[float]) -> Iterator[str]:
    if len(reference) != len(found.logprobs):
        yield f"{len(found.logprobs)} sampled tokens have {len(reference)} reference logprobs"
    elif not all(math.isfinite(one) and one <= LOGPROB_ALLOWANCE for one in reference):
        yield "a reference logprob is not finite and ≤ 0"
    elif found.policy_step == 0 and any(
        abs(one - own) > LOGPROB_ALLOWANCE
        for one, own in zip(reference, found.logprobs, strict=True)
    ):
        yield "its policy is the initial one, and its reference logprobs are not its own"


def _turn_flaws(found: Episode) -> Iterator[str]:
    lengths = [span.end - span.start for span in found.sampled]
    told = [turn.tokens for turn in found.turns]
    # An episode that failed while a turn was answered has sampled that turn and not recorded it.
    if told != (lengths[: len(told)] if found.failed else lengths) or len(lengths) > len(told) + 1:
        yield f"turns of {told} tokens were recorded, sampled spans have {lengths}"


def _budget_flaws(found: Episode, declared: Declared) -> Iterator[str]:
    spans = found.sampled
    if declared.max_turns is not None and len(spans) > declared.max_turns:
        yield f"{len(spans)} turns, but budget.max_turns is {declared.max_turns}"
    longest = max((span.end - span.start for span in spans), default=0)
    if declared.turn_tokens is not None and longest > declared.turn_tokens:
        yield f"a turn of {longest} tokens, but budget.turn_tokens is {declared.turn_tokens}"
    end = max((span.end for span in spans), default=0)
    for name, most in (
        ("budget.trajectory_tokens", declared.trajectory_tokens),
        ("server.context", declared.context),
    ):
        if most is not None and end > most:
            yield f"it was sampled up to token {end}, but {name} is {most}"


# --- ends and rewards -----------------------------------------------------------------------


def _end_flaws(found: Episode) -> Iterator[str]:
    if found.stop not in _STOPS:
        yield f"stop is {found.stop!r}, which is none of mtrl's"
    done = [index for index, call in enumerate(found.calls) if call.done]
    if done and done[0] != len(found.calls) - 1:
        yield "the environment was called after it had said done"
    if done and found.turns and not found.turns[-1].calls:
        yield "a turn was sampled after the environment had said done"
    if bool(done) != (found.stop == Stop.DONE):
        yield f"stop is {found.stop!r}, but its last call says done: {bool(done)}"
    if found.stop == Stop.ANSWER and found.turns and found.turns[-1].calls:
        yield "it ended as an answer, but its last turn has tool calls"


def _reward_flaws(found: Episode, retelling: Retelling | None) -> Iterator[str]:
    reward = found.reward
    if found.failed:
        if reward is not None:
            yield f"it failed ({found.stop}) and yet has the reward {reward:g}"
    elif reward is None:
        yield f"it ended by {found.stop!r} and has no reward"
    elif not math.isfinite(reward):
        yield f"its reward is {reward}"
    elif found.stop == Stop.DONE:
        if reward != (earned := sum(call.reward for call in found.calls)):
            yield f"its reward is {reward:g}, but its calls earned {earned:g}"
    elif retelling is not None and reward != retelling.unfinished_reward:
        wanted = retelling.unfinished_reward
        yield f"its reward is {reward:g}, but an unfinished episode gets {wanted:g}"


# --- text -----------------------------------------------------------------------------------


def _text_flaws(found: Episode, retelling: Retelling) -> Iterator[str]:
    if found.opening:
        yield from _difference(
            "prompt", 0, found.prompt, retelling.prompt(found.opening), "its messages"
        )
    turns = iter(found.turns)
    turn: Turn | None = None
    sampled: Sequence[int] = ()
    for span in found.spans[1:]:
        ids = found.tokens[span.start : span.end]
        if span.kind == "sampled":
            turn, sampled = next(turns, None), ids
            if turn is not None and not _reads_as(retelling.said(ids), turn):
                yield f"tokens {span.start} to {span.end} do not read as their turn was recorded"
        elif turn is not None:
            made = retelling.bridge(sampled, turn.calls)
            yield from _difference("bridge", span.start, ids, made, "the calls' answers")


def _reads_as(said: Said, turn: Turn) -> bool:
    if said.text != turn.text:
        return False
    if said.calls is None or not turn.calls:  # none: also of a turn that its length cut
        return True
    complete = turn.calls[-1].done or len(turn.calls) == len(said.calls)
    return (
        complete
        and len(turn.calls) <= len(said.calls)
        and all(
            told.name == name and (told.error or not broken)
            for told, (name, broken) in zip(turn.calls, said.calls, strict=False)
        )
    )


def _difference(
    kind: str, start: int, ids: Sequence[int], made: Sequence[int], of: str
) -> Iterator[str]:
    if list(ids) == list(made):
        return
    same = next(
        (at for at, (a, b) in enumerate(zip(ids, made, strict=False)) if a != b),
        min(len(ids), len(made)),
    )
    yield f"token {start + same} ({kind}) is not what the template makes of {of}"
