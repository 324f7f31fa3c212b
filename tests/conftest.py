"""For all tests: one BLAS thread, as in the processes that we start ourselves, and no deadline for
one example of a property: a busy machine is no failure.

The number of threads must be set before anything imports numpy. Two BLAS threads on matrices as
small as the embedded model's triple the CPU time.
"""

import os

from hypothesis import settings

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

settings.register_profile("any-machine", deadline=None)
settings.load_profile("any-machine")
