"""Token truth: one append-only sequence of spans, checked as it grows.

A trajectory's tokens are a **prompt** span, then **sampled** and **bridge** spans in turn. A
sampled span holds exactly the ids and logprobs that the server returned; a bridge holds what
the template puts between two turns. Nothing is ever removed, replaced or re-encoded, so what is
trained is what was sampled.

Rules, each checked when a span is appended (nothing is invented):

- every sampled token has exactly one finite logprob ≤ `LOGPROB_ALLOWANCE`; no other token has one;
- the server's echo of the context, where there is one, equals what was sent plus what was sampled;
- the weights that the server says it used are the policy that was asked for;
- a turn holds at most as many tokens as were asked for, each an id of the vocabulary.

Storage is 4 bytes an id, 4 bytes a logprob of a sampled token and 5 bytes a span.
"""

import math
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from mtrl_cli.rollout.ports import RefusedTrajectory, Sample

T = TypeVar("T")

_INT32 = 2**31

LOGPROB_ALLOWANCE = 1e-5
"""A certain token's logprob may come out this much above 0 in single precision."""


class SpanKind(StrEnum):
    PROMPT = "prompt"
    SAMPLED = "sampled"
    BRIDGE = "bridge"


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens ``start`` to ``end`` (exclusive) of a trajectory."""

    kind: SpanKind
    start: int
    end: int


_KINDS = (SpanKind.PROMPT, SpanKind.SAMPLED, SpanKind.BRIDGE)
_PROMPT, _SAMPLED, _BRIDGE = range(3)


class TokenSequence:
    """The tokens of one trajectory."""

    __slots__ = ("_ends", "_ids", "_kinds", "_logprobs")

    def __init__(self, prompt: Sequence[int]) -> None:
        self._ids = array("i", prompt)
        self._logprobs = array("f")
        self._kinds = bytearray((_PROMPT,))  # of each span, an index of _KINDS
        self._ends = array("i", (len(self._ids),))

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def ids(self) -> "array[int]":
        """All token ids, int32 [T]. Not to be changed."""
        return self._ids

    @property
    def sampled_logprobs(self) -> "array[float]":
        """The logprobs of the sampled tokens, float32 [number of sampled tokens], in order."""
        return self._logprobs

    @property
    def spans(self) -> Sequence[Span]:
        starts = (0, *self._ends[:-1])
        return tuple(
            Span(_KINDS[kind], start, end)
            for kind, start, end in zip(self._kinds, starts, self._ends, strict=True)
        )

    @property
    def sampled_count(self) -> int:
        return len(self._logprobs)

    def sampled_spans(self) -> Iterator[tuple[Span, int]]:
        """Each sampled span, with the index of its first logprob in `sampled_logprobs`."""
        offset = 0
        for span in self.spans:
            if span.kind is SpanKind.SAMPLED:
                yield span, offset
                offset += span.end - span.start

    def append_sampled(
        self, sample: Sample, policy: str, most: int = _INT32, vocabulary: int = _INT32
    ) -> None:
        """Append a turn as the server returned it.

        ``policy`` is the URI that was asked for, ``most`` the number of tokens; ids are below
        ``vocabulary``. By default both are what the storage can hold.

        Raises:
            RefusedTrajectory: one of the rules does not hold. The sequence is unchanged.
        """
        if not isinstance(sample, Sample) or sample.stop_reason not in ("stop", "length"):
            raise _no_sample(sample)
        try:
            _check_policy(sample, policy)
            _check_tokens(sample.tokens, most, vocabulary)
            _check_logprobs(sample)
            if sample.echo is not None:
                _check_echo(sample.echo, self._ids, sample.tokens)
            logprobs = array("f")
            logprobs.fromlist(_listed(sample.logprobs))
            self._append(_SAMPLED, sample.tokens)
        except (TypeError, ValueError, OverflowError) as error:
            raise _no_sample(sample) from error
        self._logprobs.extend(logprobs)

    def append_bridge(self, ids: Sequence[int]) -> None:
        """Append what the template inserts between two turns: mask 0, no logprob."""
        self._append(_BRIDGE, ids)

    def _append(self, kind: int, ids: Sequence[int]) -> None:
        self._ids.fromlist(_listed(ids))
        self._kinds.append(kind)
        self._ends.append(len(self._ids))


def _no_sample(sample: object) -> RefusedTrajectory:
    return RefusedTrajectory(
        "no_sample",
        f"the policy returned {sample!r:.100}: it returns a Sample of token ids, their logprobs and"
        ' "stop" or "length"',
    )


def _listed(values: Sequence[T]) -> list[T]:
    """An array takes a list in one piece, and anything else one value after the other."""
    return values if type(values) is list else list(values)


def _check_policy(sample: Sample, policy: str) -> None:
    if sample.policy is not None and sample.policy != policy:
        raise RefusedTrajectory(
            "policy_mismatch", f"asked for policy {policy}, but the server sampled {sample.policy}"
        )


def _check_tokens(tokens: Sequence[int], most: int, vocabulary: int) -> None:
    if len(tokens) > most:
        raise RefusedTrajectory(
            "too_many_tokens", f"asked for {most} tokens, but the server returned {len(tokens)}"
        )
    if tokens and not 0 <= min(tokens) <= max(tokens) < vocabulary:
        unknown = next(token for token in tokens if not 0 <= token < vocabulary)
        raise RefusedTrajectory(
            "unknown_token",
            f"token {unknown} was sampled, and the tokenizer has ids 0 to {vocabulary - 1}",
        )


def _check_logprobs(sample: Sample) -> None:
    if len(sample.logprobs) != len(sample.tokens):
        raise RefusedTrajectory(
            "bad_logprobs",
            f"the server returned {len(sample.tokens)} tokens and {len(sample.logprobs)} logprobs",
        )
    # A sum is finite only if all of its terms are; that it may overflow costs a second look.
    highest = max(sample.logprobs, default=0.0)
    if math.isfinite(sum(sample.logprobs)) and highest <= LOGPROB_ALLOWANCE:
        return
    for position, logprob in enumerate(sample.logprobs):
        if not (math.isfinite(logprob) and logprob <= LOGPROB_ALLOWANCE):
            raise RefusedTrajectory(
                "bad_logprobs",
                f"logprob {logprob} of sampled token {position} is not finite and ≤ 0",
            )


def _check_echo(echo: Sequence[int], sent: Sequence[int], sampled: Sequence[int]) -> None:
    """DivergentEncoding: the server continued another context than the one it was sent."""
    expected = [*sent, *sampled]
    if len(echo) != len(expected):
        raise RefusedTrajectory(
            "divergent",
            f"DivergentEncoding: sent and sampled {len(expected)} tokens, the server echoes "
            f"{len(echo)}",
        )
    for position, (theirs, ours) in enumerate(zip(echo, expected, strict=True)):
        if theirs != ours:
            raise RefusedTrajectory(
                "divergent",
                f"DivergentEncoding: token {position} is {ours}, the server echoes {theirs}",
            )
