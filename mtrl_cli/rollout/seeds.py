"""Seeds derived from names, so that no stream depends on the order of events.

Every seed is a hash of what it is for: the run's seed, a stream's name, and indices. Streams
with different names are disjoint for all practical purposes (62-bit hashes), so evaluation
never plays a game that training has seen, and a refilled member never repeats its tokens.
"""

from collections.abc import Callable
from hashlib import blake2b

SEED_BITS = 62
"""Fits a signed 64-bit integer on every server."""

_BETWEEN = "\x1f"


def derive(*parts: int | str) -> int:
    """A seed in [0, 2**62) that depends on every part and on their order."""
    return _seed(_hashed(_text(*parts)))


def training_task(run_seed: int, group: int) -> int:
    """The task seed of a training group."""
    return derive("task/train", run_seed, group)


def evaluation_task(eval_seed: int, index: int) -> int:
    """The task seed of an evaluation game; it does not depend on the run's seed."""
    return derive("task/eval", eval_seed, index)


def sampling(stream: str, run_seed: int, group: int, member: int, refill: int, turn: int) -> int:
    """The sampling seed of one turn."""
    return derive("sample", stream, run_seed, group, member, refill, turn)


def sampling_of_turns(
    stream: str, run_seed: int, group: int, member: int, refill: int
) -> Callable[[int], int]:
    """`sampling` of one trajectory, by turn: what its turns share is hashed once."""
    shared = _hashed(_text("sample", stream, run_seed, group, member, refill))

    def of(turn: int) -> int:
        hashed = shared.copy()
        hashed.update(f"{_BETWEEN}int:{turn}".encode())
        return _seed(hashed)

    return of


def _text(*parts: int | str) -> str:
    return _BETWEEN.join([f"{type(part).__name__}:{part}" for part in parts])


def _hashed(text: str) -> blake2b:
    return blake2b(text.encode(), digest_size=8)


def _seed(hashed: blake2b) -> int:
    return int.from_bytes(hashed.digest(), "big") >> (64 - SEED_BITS)
