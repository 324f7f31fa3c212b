"""The ``mtrl`` command, and ``python -m mtrl_cli``.

Ctrl-C is answered from the first statement on: imports take a moment, and until a run begins
nothing is held that would have to be returned, so leaving at once is right and quiet.
"""

import mtrl_cli.quiet  # noqa: F401, I001

import gc
import os
import sys
from typing import Any

_START = 200_000
"""Objects that stand before the first search for garbage; a dry run's imports and configuration
make half as many, all of them to stay."""


def _fill_standard_descriptors() -> None:
    """Point a standard descriptor that the caller closed (``mtrl … >&-``) at nothing.

    Python has no stream for it then, and the next file that is opened, a ledger say, would get
    its number and everything that is printed.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != descriptor:
                os.dup2(nowhere, descriptor)
                os.close(nowhere)
            setattr(sys, name, open(descriptor, "w" if descriptor else "r"))  # noqa: SIM115, PTH123


_fill_standard_descriptors()


def _search_for_garbage_later() -> None:
    """Spare a start its searches for garbage, a tenth of its time, as there is none yet. The first
    search, if it comes to that, brings back how often it is usually done."""
    usual = gc.get_threshold()

    def back(_phase: str, _facts: dict[str, Any]) -> None:
        gc.set_threshold(*usual)
        gc.callbacks.remove(back)

    gc.callbacks.append(back)
    gc.set_threshold(_START, *usual[1:])


def main() -> None:
    """The entry point."""
    _search_for_garbage_later()
    from mtrl_cli.cli.app import app

    app(prog_name="mtrl")


if __name__ == "__main__":
    main()
