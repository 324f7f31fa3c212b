"""What can be borrowed, as its lender describes it. See `resources` for the life of a borrow."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


def _no_id(thing: Any) -> str | int | None:
    return None


def _no_facts(thing: Any) -> Mapping[str, Any]:
    return {}


def _surely_not_made(error: BaseException) -> bool:
    return False


def _nothing_waits(key: str) -> None:
    pass


def _ends_with_process(name: str | int | None) -> str:
    return "it ends with this process"


@dataclass(frozen=True, slots=True)
class Lender(Generic[T]):
    """Lends one kind of thing.

    ``make`` gets the borrow's key and bounds itself in time; when it raises, nothing is held,
    unless ``perhaps_made`` says of the error that the thing may be there: its borrow is then
    quarantined.
    ``give_back`` is called once. ``external`` things live on when they are forgotten, so their
    borrows are recorded on disk before they are made.
    """

    kind: str
    make: Callable[[str], Awaitable[T]]
    give_back: Callable[[T], Awaitable[None]]
    external: bool = False
    place: str = "this process"
    identify: Callable[[T], str | int | None] = _no_id
    remedy: Callable[[str | int | None], str] = _ends_with_process
    """How a person removes the thing by hand, given its id."""
    perhaps_made: Callable[[BaseException], bool] = _surely_not_made
    facts: Callable[[T], Mapping[str, Any]] = _no_facts
    """What else its record needs, so that somebody else can return it when we are gone."""
    unwanted: Callable[[str], None] = _nothing_waits
    """The borrower of this key is gone: a making that only waits for its turn may end at once, by
    raising. One that has begun is awaited as ever."""
    interruptible: bool = False
    """Operations on the thing may be cancelled as soon as its borrower is gone, and the thing be
    returned in the middle of them."""
    patience: float | None = None
    """Seconds that its return may take; None is the register's own."""
