"""E2B's service on loopback: its REST API and the process protocol of its sandboxes.

The official SDK drives it unmodified. A sandbox is a folder; its commands are real processes of
this machine, with its folder as their home. There is no isolation: run here what you would run in
a shell. What it keeps exactly is what clients are tested on: which sandboxes were created, which
live, and how they ended::

    with E2BEmulator() as emulator:
        os.environ.update(emulator.environ())
        emulator.faults.add("create", faults.drop_reply())       # a lost reply
        …
        assert emulator.live == []
        emulator.counts()      # created, live, killed, expired, vanished, most at once

Faults (`mtrl_cli.testing.faults`) are planned for an operation: ``create``, ``list``, ``kill``,
``info``, ``timeout``, ``health``, ``write``, ``read``, ``start``, ``send_input``, and ``output``,
which is one piece of a command's output on its stream. The same counts are served as JSON at
``/emulator``, for who looks from another process.
"""

from mtrl_cli.testing.e2b_emulator.server import E2BEmulator

__all__ = ["E2BEmulator"]
