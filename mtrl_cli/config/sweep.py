"""Sweeps: overrides with several values (``seed=1,2,3``, ``range(1,4)``), multiplied out."""

import itertools
from collections.abc import Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob
from hydra.errors import HydraException

from mtrl_cli.config.errors import ConfigError

MOST = 1000
"""Runs of one sweep."""


def combinations(arguments: Sequence[str]) -> list[tuple[dict[str, str], list[str]]]:
    """The runs of a sweep, in order; the last argument varies first.

    Each has what was varied for it, as key → value, and its whole list of overrides. An argument
    that cannot be read stays as it is: composing says what is wrong with it.

    Raises:
        ConfigError: a sweep that cannot be counted, or has too many runs.
    """
    choices = [_values(argument) for argument in arguments]
    count = 1
    for values in choices:
        count *= len(values)
    if count > MOST:
        raise ConfigError(
            f"{count:,} runs in one sweep", at=" ".join(arguments), hint=f"allowed: up to {MOST:,}"
        )
    runs = []
    for chosen in itertools.product(*choices):
        told = zip(chosen, choices, strict=True)
        pairs = [one.partition("=") for one, values in told if len(values) > 1]
        runs.append(({key.lstrip("+"): value for key, _, value in pairs}, list(chosen)))
    return runs


def _values(argument: str) -> list[str]:
    """The single overrides that an argument stands for."""
    try:
        override = OverridesParser.create().parse_overrides([argument])[0]
        if not override.is_sweep_override():
            return [argument]
        if isinstance(override.value(), Glob):
            raise ConfigError(
                "a glob names options, and mtrl runs those that are listed",
                at=argument,
                hint=f"write {argument.partition('=')[0]}=A,B,C",
            )
        if not override.is_discrete_sweep():
            raise ConfigError(
                "an interval has no values to run one by one",
                at=argument,
                hint=f"write {argument.partition('=')[0]}=A,B,C or range(START,STOP,STEP)",
            )
        key = override.get_key_element()
        values = [f"{key}={value}" for value in override.sweep_string_iterator()]
    except HydraException:
        return [argument]
    return values or [argument]
