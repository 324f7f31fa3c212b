"""What defaults lists did to an experiment's values, where that was surely not meant.

The entries of a defaults list are merged in their order, and the last one wins. A file whose
``_self_`` is not the last one loses the values that a later entry sets too; and what is built on
from another folder fills the section that is called like it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mtrl_cli.config.errors import MOST, ConfigError
from mtrl_cli.config.files import places
from mtrl_cli.config.files.defaults import SELF, Entry
from mtrl_cli.config.files.lines import line_of
from mtrl_cli.config.keys import schema_keys
from mtrl_cli.config.overrides import CheckedOverride
from mtrl_cli.config.sources import Source, value_at


def refuse_replaced(
    container: Mapping[str, Any],
    built_on: Sequence[Source],
    overrides: Sequence[CheckedOverride],
) -> None:
    """Refuse a defaults list that replaces values of its own file.

    Args:
        container: the merged values.
        built_on: the experiment's file, and the ones that it builds on, the nearest first.
        overrides: they may replace any value.

    Raises:
        ConfigError: naming the keys, and the line of ``_self_``.
    """
    for position, source in enumerate(built_on):
        listed = _from_self(source.defaults)
        if len(listed) < 2:
            continue
        values = {key: value for key, value in source.values.items() if key != "defaults"}
        merged = value_at(container, source.group) if source.group else container
        lost = [
            key
            for key in _differing(values, merged, source.group)
            if not any(override.sets(key) for override in overrides)
            if not any(nearer.states(key) for nearer in built_on[:position])
        ]
        if lost:
            raise ConfigError(
                f"what stands behind `{SELF}` replaces this file's own {', '.join(lost[:MOST])}",
                at=places.named(source.file, line_of(source.file, listed[0].key)),
                hint=f"put `{SELF}` last: the last entry wins",
            )


def refuse_stray(container: Mapping[str, Any], built_on: Sequence[Source]) -> None:
    """Refuse an entry whose values are in a section that there is not.

    Raises:
        ConfigError: naming the entry, and what puts its values at the top.
    """
    stray = container.keys() - schema_keys().keys()
    for source in built_on:
        for entry in source.defaults:
            if entry.section.partition(".")[0] in stray:
                name, colon, option = entry.told.partition(":")
                named = f"{name.partition('@')[0]}@_global_{colon}{option}"
                raise ConfigError(
                    f"`{entry.told}` fills a section {entry.section!r}, which there is not",
                    at=places.named(source.file, line_of(source.file, entry.key)),
                    hint=f"write `- {named}`, and its values are the experiment's own",
                )


def _from_self(listed: Sequence[Entry]) -> Sequence[Entry]:
    """``_self_``, and what is merged behind it: an override is merged where its group stands."""
    merged = [entry for entry in listed if not entry.override]
    start = next((index for index, entry in enumerate(merged) if entry.is_self), len(merged))
    return merged[start:]


def _differing(own: Any, merged: Any, above: str) -> Iterator[str]:
    """The keys of ``own`` whose value is another one in ``merged``."""
    if isinstance(own, Mapping) and isinstance(merged, Mapping):
        for name, value in own.items():
            key = f"{above}.{name}" if above else str(name)
            yield from _differing(value, merged.get(name), key)
    elif own not in (merged, "???"):
        yield above
