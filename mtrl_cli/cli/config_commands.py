"""``mtrl config …``: the configuration, looked at and not run."""

from typing import Annotated

import typer

from mtrl_cli.cli.failures import told_in_one_line
from mtrl_cli.cli.help import CommandGroup, OverridesCommand
from mtrl_cli.cli.options import AsJson, ConfigDirs, Debug, Overrides
from mtrl_cli.errors import UsageError

config = typer.Typer(
    name="config",
    cls=CommandGroup,
    help="Look at the configuration.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@config.command("show", cls=OverridesCommand)
def show(
    overrides: Overrides = None,
    as_json: AsJson = False,
    as_yaml: Annotated[
        bool, typer.Option("--yaml", help="Print YAML that composes again with conf=FILE.")
    ] = False,
    config_dir: ConfigDirs = None,
    debug: Debug = False,
) -> None:
    """Print the composed experiment, and what set each value.

    Takes conf=NAME, GROUP=OPTION and KEY=VALUE as mtrl train does. A section or a key alone
    (train, train.steps) shows only that. Secrets are masked.
    """
    from mtrl_cli.cli.commands.config_show import show_config

    with told_in_one_line(debug=debug) as teller:
        if as_json and as_yaml:
            raise UsageError("--json and --yaml exclude each other")
        code = show_config(
            overrides or [], config_dir or [], teller, as_json=as_json, as_yaml=as_yaml
        )
        raise typer.Exit(code)


@config.command("list")
def list_all(as_json: AsJson = False, config_dir: ConfigDirs = None, debug: Debug = False) -> None:
    """List the experiments, and the config groups with their options."""
    from mtrl_cli.cli.commands.config_show import list_config

    with told_in_one_line(debug=debug):
        raise typer.Exit(list_config(config_dir or [], as_json=as_json))
