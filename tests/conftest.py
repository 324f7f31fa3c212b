"""For all tests: one BLAS thread, as in the processes that we start ourselves.

It must be set before anything imports numpy. Two BLAS threads on matrices as small as the
embedded model's triple the CPU time.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
