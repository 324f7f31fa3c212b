import os
from collections.abc import Iterator

import pytest

from mtrl_cli.testing.e2b_emulator import E2BEmulator

os.environ.setdefault("E2B_MAX_CONNECTIONS", "4096")  # read when the SDK is first imported


@pytest.fixture
def emulator(monkeypatch: pytest.MonkeyPatch) -> Iterator[E2BEmulator]:
    """An emulator that the SDK in this process is led to."""
    pytest.importorskip("e2b")
    with E2BEmulator() as running:
        for name, value in running.environ().items():
            monkeypatch.setenv(name, value)
        yield running
