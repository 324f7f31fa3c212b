"""Importing this module makes Ctrl-C quiet: the process ends with 130 and without a traceback.

It is for the first line of a script, where the imports that follow take a moment and nothing is
held yet. `mtrl_cli.script.run` takes over for as long as something is. A shell that starts a
background job makes it ignore Ctrl-C; that choice stays.
"""

import os
import signal

INTERRUPTED = 128 + signal.SIGINT

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, lambda _number, _frame: os._exit(INTERRUPTED))
