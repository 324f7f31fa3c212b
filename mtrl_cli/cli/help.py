"""Help that lists what can be composed: experiments, config groups and their options.

A plain walk over the folders, without Hydra: help must be quick.
"""

import textwrap
from typing import Any, cast

from typer.core import TyperCommand, TyperGroup

WIDEST = 110
"""Columns of a help text, on a terminal that is as wide; more is hard to read."""

_EXAMPLES = """\
Examples:
  mtrl {name}
  mtrl {name} conf=NAME group.size=16 --dry-run
  mtrl {name} conf=./mine.yaml 'server.base_url="http://host:8000"'
Quote what your shell would expand: brackets, braces, ~ and $."""


class CommandGroup(TyperGroup):
    """Commands of which one is also suggested for a part of its name."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except Exception as error:
            told = cast("Any", error)
            holding = [name for name in self.commands if args[0] in name]
            if holding and "Did you mean" not in getattr(told, "message", "Did you mean"):
                told.message = f"{told.message.rstrip('.')}. Did you mean {holding[0]!r}?"
            raise


class OverridesCommand(TyperCommand):
    """A command that takes overrides: what is written as an option instead is put right."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            told = cast("Any", error)
            if override := _as_override(getattr(told, "option_name", ""), given):
                told.message = f"No such option: {told.option_name}; write {override}"
                told.possibilities = None
            raise


class ExperimentCommand(OverridesCommand):
    """A command that plays an experiment; its help lists them."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super().format_help(ctx, formatter)
        formatter.write(
            "\n" + _listing(formatter.width) + "\n\n" + _EXAMPLES.format(name=self.name) + "\n"
        )


def _as_override(option: str, arguments: list[str]) -> str | None:
    """``--conf NAME``, ``--train.steps=3`` and ``--steps 3`` as they are to be written; None for
    other options."""
    from mtrl_cli.config.keys import keys_named, known
    from mtrl_cli.config.secrets import is_secret

    name = option.lstrip("-").replace("-", "_")
    keys = [name] if name == "conf" or (name and known(name)) else keys_named(name)
    if not keys:
        return None
    value = ""
    for argument, after in zip(arguments, [*arguments[1:], ""], strict=True):
        if argument.startswith(f"{option}="):
            value = argument.partition("=")[2]
        elif argument == option and not after.startswith("-"):
            value = after
    return " or ".join(f"{key}={'VALUE' if not value or is_secret(key) else value}" for key in keys)


def _listing(width: int) -> str:
    from mtrl_cli.config.files import places

    dirs = places.search_dirs()
    names = ", ".join(places.experiments(dirs))
    indented = textwrap.wrap(names, width, initial_indent="  ", subsequent_indent="  ")
    lines = ["Experiments (conf=NAME; mtrl config list says what they are):", *indented]
    groups = places.groups(dirs)
    if groups:
        longest = max(map(len, groups))
        lines += ["", "Config groups (GROUP=OPTION, GROUP.KEY=VALUE):"]
        lines += [f"  {group:<{longest}}  {', '.join(names)}" for group, names in groups.items()]
    return "\n".join(lines)
