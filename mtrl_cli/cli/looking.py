"""The commands that look at one run and change nothing of it."""

import typer


def register(app: typer.Typer) -> None:
    """Add them to ``app``."""
