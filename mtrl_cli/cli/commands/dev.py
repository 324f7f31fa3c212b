"""``mtrl dev``: what helps to try mtrl out. Each server is a process that this command becomes."""

import os
import sys
from typing import NoReturn


def e2b_emulator(port: int) -> NoReturn:
    """Become the emulator, so that signals and the exit code are its own."""
    sys.stdout.flush()
    arguments = ["-m", "mtrl_cli.testing.e2b_emulator", "--port", str(port)]
    os.execv(sys.executable, [sys.executable, *arguments])
