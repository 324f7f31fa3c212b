"""Help that lists what can be composed: experiments, config groups and their options.

A plain walk over the folders, without Hydra: help must be quick.
"""

import textwrap
from typing import Any

from typer.core import TyperCommand

WIDEST = 110
"""Columns of a help text, on a terminal that is as wide; more is hard to read."""

_EXAMPLES = """\
Examples:
  mtrl {name}
  mtrl {name} conf=NAME group.size=16 --dry-run
  mtrl {name} conf=./mine.yaml 'server.base_url="http://host:8000"'
Quote what your shell would expand: brackets, braces, ~ and $."""


class ExperimentCommand(TyperCommand):
    """A command that takes overrides."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super().format_help(ctx, formatter)
        formatter.write(
            "\n" + _listing(formatter.width) + "\n\n" + _EXAMPLES.format(name=self.name) + "\n"
        )


def _listing(width: int) -> str:
    from mtrl_cli.config import places

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
