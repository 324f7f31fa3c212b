"""The kernel's signals of a parent's death come in a burst, one for each of its threads, and
interrupt each other anywhere: the process ends all the same."""

import subprocess
import sys

NESTED = """
import os, signal, sys, threading, time
from mtrl_cli.parent import ParentWatch

parent = os.fork()
if parent == 0:
    time.sleep(1.0)
    os._exit(0)
threading.Thread(target=lambda: os.waitpid(parent, 0), daemon=True).start()
watch = ParentWatch(parent, lambda: os._exit(7))
handler = signal.getsignal(signal.SIGUSR2)
seen = []

def interrupt(frame, event, arg):
    # The second signal, within whatever Python code the first one's handler runs.
    if frame.f_code.co_name not in seen and len(seen) < 20:
        seen.append(frame.f_code.co_name)
        handler(signal.SIGUSR2, None)

sys.settrace(interrupt)
handler(signal.SIGUSR2, None)
sys.settrace(None)
time.sleep(20)
os._exit(1)
"""


def test_signals_that_interrupt_each_other_do_not_keep_it_alive() -> None:
    done = subprocess.run([sys.executable, "-c", NESTED], timeout=30, check=False)
    assert done.returncode == 7
