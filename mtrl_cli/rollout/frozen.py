"""Plain data that nobody changes any more: what many trajectories share.

A mapping becomes a `FrozenDict`, a list a tuple, a set a frozenset, all the way down; other values
stay. A frozen mapping is still a ``dict`` for whoever reads or serialises it, and a deep copy of it
is a plain one again.
"""

from collections.abc import Mapping
from typing import Any, NoReturn


class FrozenDict(dict[str, Any]):
    """A dict that raises TypeError when it is changed."""

    __slots__ = ()

    def _refuse(self, *args: object, **kwargs: object) -> NoReturn:
        raise TypeError("this mapping is shared and cannot be changed; copy it: dict(mapping)")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        return dict, (dict(self),)


def frozen(value: Any) -> Any:
    """``value`` with every container in it frozen."""
    if isinstance(value, Mapping):
        return FrozenDict((key, frozen(item)) for key, item in value.items())
    if type(value) in (list, tuple):
        return tuple(frozen(item) for item in value)
    if isinstance(value, set):
        return frozenset(value)
    return value
