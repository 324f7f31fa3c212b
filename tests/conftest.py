"""For all tests: one BLAS thread, as in the processes that we start ourselves; no deadline for one
example of a property: a busy machine is no failure; and a Ctrl-C that is heard.

The number of threads must be set before anything imports numpy. Two BLAS threads on matrices as
small as the embedded model's triple the CPU time.
"""

import os
import signal

from hypothesis import settings

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

settings.register_profile("any-machine", deadline=None)
settings.load_profile("any-machine")

# A shell starts what it runs in the background with both ignored, and so would be every `mtrl`
# that the tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
