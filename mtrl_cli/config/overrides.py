"""The ``key=value`` arguments of a command, checked one by one before anything is composed.

``conf=NAME`` chooses the experiment and is mtrl's own; the rest is Hydra's override grammar.
Every mistake is found here, where its override can still be named.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from mtrl_cli.config.errors import ConfigError, together
from mtrl_cli.config.files import places
from mtrl_cli.config.files.shapes import shape_error
from mtrl_cli.config.keys import key_meant, known, nearest
from mtrl_cli.config.secrets import is_secret, masked_value, mentions_secret, without_user


@dataclass(frozen=True)
class CheckedOverride:
    """One override: what it sets, how Hydra is told, how a person is shown it."""

    key: str
    hydra: str
    shown: str
    group: bool
    """It chooses an option of a config group."""

    def sets(self, key: str) -> bool:
        return not self.group and (key == self.key or key.startswith(f"{self.key}."))


def split_conf(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """Take ``conf=NAME`` out of the arguments."""
    conf = [argument for argument in arguments if argument.startswith("conf=")]
    if len(set(conf)) > 1:
        raise ConfigError(
            "conf= is given more than once", at=" ".join(conf), hint="choose one experiment"
        )
    name = conf[0].removeprefix("conf=") if conf else None
    if name == "":
        raise ConfigError("conf= names no experiment", at="conf=", hint="write conf=NAME")
    return name, [argument for argument in arguments if not argument.startswith("conf=")]


def check_all(arguments: Sequence[str], dirs: Sequence[Path]) -> tuple[CheckedOverride, ...]:
    """Check every override.

    Raises:
        ConfigError: one is wrong, or several; it tells of each.
    """
    checked, wrong = [], []
    for argument in arguments:
        try:
            checked.append(check(argument, dirs))
        except ConfigError as error:
            wrong.append(error)
    if wrong:
        raise together(wrong)
    return tuple(checked)


def check(argument: str, dirs: Sequence[Path]) -> CheckedOverride:
    """Check one override.

    Raises:
        ConfigError: it is no override, cannot be read, or sets what does not exist.
    """
    shown = _without_secret(argument)
    if "=" not in argument and not argument.startswith("~"):
        raise _not_an_override(argument, dirs)
    key = argument.partition("=")[0].lstrip("+~").partition("@")[0]
    if key.replace("/", ".").split(".")[0] == "hydra":
        raise ConfigError(
            f"{key} is Hydra's own setting, and mtrl does not run as a Hydra application",
            at=shown,
            hint="the run folder is run.dir=FOLDER",
        )
    override = _parse(argument, shown)
    if wrong := _wrong_shapes(override, key, shown):
        raise together(wrong)
    options = places.groups(dirs).get(key)
    if options is not None and not isinstance(override.value(), dict):
        return _group_choice(override, key, options, shown)
    if not known(key):
        hint = key_meant(key) or "see `mtrl train --help`"
        raise ConfigError(f"unknown key {key!r}", at=shown, hint=hint)
    # `++` sets a key whether or not a YAML file mentions it: the schema is the judge, not the file.
    told = argument if override.is_delete() else f"++{argument.lstrip('+')}"
    return CheckedOverride(key, told, shown, group=False)


def _wrong_shapes(override: Override, key: str, shown: str) -> list[ConfigError]:
    value = override.value()
    if not isinstance(value, dict | list):  # one word may name an option
        return []
    return list(shape_error(key, value, lambda _: shown))


def _parse(argument: str, shown: str) -> Override:
    try:
        # One at a time: the parser's errors do not say which override they are about.
        override = OverridesParser.create().parse_overrides([argument])[0]
        sweeps = override.is_sweep_override()
    except (HydraException, ValueError, RecursionError) as error:
        secret = shown != argument
        reason = "" if secret else f": {_reason(error)}"
        key = shown.partition("=")[0]
        raise ConfigError(
            f"cannot read this override{reason}",
            at=shown,
            hint=f"quote a value that holds special characters: '{key}=\"VALUE\"'",
        ) from error
    if sweeps:
        key = shown.partition("=")[0]
        raise ConfigError(
            "several values in one override; one command runs one experiment",
            at=shown,
            hint=f"--multirun runs each of them; a list is written '{key}=[1,2]', a text with"
            f" commas '{key}=\"1,2\"'",
        )
    return override


def _reason(error: Exception) -> str:
    """What the parser stumbled over, without its frame of repetition and links."""
    frame = ("Error parsing override", "See ")
    lines = [line for line in str(error).splitlines() if not line.startswith(frame)]
    if not lines or lines[0].startswith("LexerNoViableAltException"):
        return "a character that the grammar does not know"
    return lines[0].partition(" expecting {")[0].partition(";")[0]


def _group_choice(
    override: Override, group: str, options: Sequence[str], shown: str
) -> CheckedOverride:
    option = override.value()
    if option not in options:
        near = nearest(str(option), options)
        guess = f"did you mean {group}={near}? " if near else ""
        raise ConfigError(
            f"{group!r} has no option {option!r}",
            at=shown,
            hint=f"{guess}available: {', '.join(options)}",
        )
    told = (override.input_line or shown).lstrip("+")
    return CheckedOverride(group, told, shown, group=True)


def _not_an_override(argument: str, dirs: Sequence[Path]) -> ConfigError:
    names = places.experiments(dirs)
    looks_like_a_file = argument.endswith((".yaml", ".yml"))
    near = argument if argument in names else nearest(argument, names)
    if near or looks_like_a_file:
        chosen = argument if looks_like_a_file else near
        hint = f"to choose an experiment write conf={chosen}"
    elif known(argument):
        hint = f"write {argument}=VALUE"
    elif meant := key_meant(argument, "=VALUE"):
        hint = meant
    else:
        hint = "write conf=NAME to choose an experiment, key=value to change it"
    return ConfigError(f"{argument!r} is not an override", at=argument, hint=hint)


def _without_secret(argument: str) -> str:
    key, equals, value = argument.partition("=")
    secret = is_secret(key.lstrip("+~")) or mentions_secret(value)
    return f"{key}={masked_value(value)}" if equals and secret else without_user(argument)
