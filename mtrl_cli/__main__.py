"""The ``mtrl`` command, and ``python -m mtrl_cli``.

Ctrl-C is answered from the first statement on: imports take a moment, and until a run begins
nothing is held that would have to be returned, so leaving at once is right and quiet.
"""

import os
import signal

INTERRUPTED = 128 + signal.SIGINT

# A shell that starts a background job makes it ignore SIGINT; that choice stays.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, lambda _signum, _frame: os._exit(INTERRUPTED))


def main() -> None:
    """The entry point."""
    from mtrl_cli.cli.app import app

    app(prog_name="mtrl")


if __name__ == "__main__":
    main()
