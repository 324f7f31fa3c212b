"""Importing this module makes Ctrl-C quiet: the process ends with 130 and without a traceback.

It is for the first line of a script, where the imports that follow take a moment and nothing is
held yet; `mtrl_cli.script.run` takes over for as long as something is. When all is done and only
the interpreter is left to end, its exit code stands: a signal that was handled until then is
ignored. A shell that starts a background job makes it ignore Ctrl-C; that choice stays.
"""

import atexit
import os
import signal

INTERRUPTED = 128 + signal.SIGINT


def _ignore_from_here_on() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_IGN)


if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, lambda _number, _frame: os._exit(INTERRUPTED))
atexit.register(_ignore_from_here_on)  # the first to be registered is the last to be called
