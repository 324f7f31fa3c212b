"""One YAML file read as it stands, before anything is merged."""

from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import GrammarParseError, OmegaConfBaseException, UnsupportedValueType
from omegaconf.grammar_parser import parse

from mtrl_cli.config.errors import ConfigError
from mtrl_cli.config.files import places
from mtrl_cli.config.files.lines import holds_itself, tagged, written


def read(file: Path) -> Any:
    """What ``file`` holds, unresolved, in plain containers.

    Raises:
        ConfigError: it cannot be read, or is no YAML; with the line where that is known.
    """
    if line := holds_itself(file):
        raise ConfigError(
            "a part of the file holds itself, by an anchor (`&`)",
            at=places.named(file, line),
            hint="write out what is meant",
        )
    try:
        return OmegaConf.to_container(OmegaConf.load(file), resolve=False)
    except yaml.YAMLError as error:
        raise yaml_error(error, file) from error
    except UnsupportedValueType as error:
        tag, line = tagged(file) or ("", None)
        raise ConfigError(
            f"no setting takes a value of this kind: {tag or first_line(error)}",
            at=places.named(file, line),
            hint="write a text, a number, true or false, null, a list `[A, B]` or a mapping"
            " `{KEY: VALUE}`",
        ) from error
    except (OSError, ValueError, RecursionError, OmegaConfBaseException) as error:
        line = _unparsable(file) if isinstance(error, GrammarParseError) else None
        raise ConfigError(
            f"cannot read the file: {first_line(error)}", at=places.named(file, line)
        ) from error


def experiment(file: Path) -> dict[str, Any]:
    """What an experiment's file, or one that it builds on, holds.

    Raises:
        ConfigError: it cannot be read, or holds no settings.
    """
    node = read(file)
    if not isinstance(node, dict):
        raise ConfigError(
            "the file holds no experiment",
            at=places.shown(file),
            hint="write `key: value` lines; docs/configuration.md shows an example",
        )
    return {str(key): value for key, value in node.items()}


def yaml_error(error: yaml.YAMLError, file: Path) -> ConfigError:
    """What is no YAML, in ``file`` or, where the error names one, another file."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    if mark is None:
        return ConfigError(f"not valid YAML: {problem}", at=places.shown(file))
    where = f"{places.shown(Path(mark.name))}:{mark.line + 1}:{mark.column + 1}"
    return ConfigError(f"not valid YAML: {problem}", at=where)


def first_line(error: Exception) -> str:
    """The first line of what an error says, else its kind."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def _unparsable(file: Path) -> int | None:
    """The line of the first text whose interpolation cannot be read."""
    for one in written(file):
        if "${" not in one.text:
            continue
        try:
            parse(one.text)
        except GrammarParseError:
            return one.line
    return None
