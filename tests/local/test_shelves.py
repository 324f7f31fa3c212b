"""Removing from a store: what cannot be removed, and an end in the middle."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from mtrl_cli.local.shelves import Shelves
from mtrl_cli.local.store import Ref, Store

MODEL = "model_0123456789ab"
REFS = [Ref(MODEL, "weights", f"r/{number}") for number in range(3)]


def filled(root: Path) -> None:
    store = Store(root)
    store.new_model(MODEL, {})
    for ref in REFS:
        store.save(ref, {"w": np.zeros(1)}, {})
    store.close()


def test_one_that_cannot_be_removed_is_told_and_the_rest_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path)
    unlink = os.unlink

    def immutable(name: str, *, dir_fd: int) -> None:
        if name == "r+1.npz":
            raise PermissionError(errno.EPERM, "Operation not permitted")
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", immutable)
    left: list[str] = []
    shelves = Shelves(tmp_path, lambda place, why: left.append(f"{place} {why}"))
    gone = {item.ref for item in shelves.remove(REFS, before=time.time() + 60)}
    assert gone == {REFS[0], REFS[2]}
    place = f"models/{MODEL}/weights/r+1.npz"
    assert left == [f"{place} cannot be removed (operation not permitted)"]
    assert [item.ref for item in shelves.checkpoints()] == [REFS[1]]


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_behind_a_file_that_it_has_told(
    tmp_path: Path, number: signal.Signals
) -> None:
    filled(tmp_path)
    command = [sys.executable, "-m", "mtrl_cli.local.tidy", "--store", str(tmp_path), "--remove"]
    process = subprocess.Popen(command, stdin=-1, stdout=-1, text=True)
    status = Path(f"/proc/{process.pid}/status")
    caught = 0
    while not caught & 1 << (signal.SIGTERM - 1):  # until it handles signals
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        caught = int(lines["SigCgt"], 16)
    process.send_signal(number)
    out, _ = process.communicate("\n".join(ref.uri for ref in REFS), timeout=60)
    told = [json.loads(line)["uri"] for line in out.splitlines()]
    assert (process.returncode, len(told)) == (128 + number, 1)
    stays = {ref.uri for ref in REFS} - set(told)
    assert {item.ref.uri for item in Shelves(tmp_path, print).checkpoints()} == stays
