"""Real runs in the background, and what is asked of them."""

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from mtrl_cli.runs.processes import Standing, standing
from tests.cli.processes import command, environment, mtrl

TINY = (
    "train.steps=1000",
    "group.size=2",
    "group.per_step=1",
    "eval.games=0",
    "train.checkpoint_every=0",
)
"""Overrides for a run of small steps that does not end by itself."""

SCRIPTED = (
    *TINY,
    "server=tinker",
    "server.base_model=scripted",
    "server.tokenizer=mtrl-tiny",
    "train.lora_rank=8",
    "train.kl=0",
)
"""The same against a scripted server; add ``server.base_url``, and TINKER_API_KEY."""

LONGEST = 60.0


def until(what: Callable[[], bool], seconds: float = LONGEST) -> None:
    """Wait until ``what`` holds."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it never came to pass"
        time.sleep(0.02)


class Train:
    """``mtrl train`` in the background; whatever is left of it is killed at the end."""

    def __init__(self, cwd: Path, overrides: Sequence[str], **environ: str) -> None:
        self._runs = cwd / "runs"
        with (cwd / "out.txt").open("w") as out, (cwd / "err.txt").open("w") as err:
            self.process = subprocess.Popen(
                command("train", *overrides),
                cwd=cwd,
                env=environment(**environ),
                stdout=out,
                stderr=err,
            )
        self._said = (cwd / "out.txt", cwd / "err.txt")

    def __enter__(self) -> "Train":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    @property
    def folder(self) -> Path:
        return (self._runs / "latest").resolve()

    @property
    def id(self) -> str:
        return self.folder.name

    def said(self) -> str:
        return "".join(path.read_text() for path in self._said)

    def state(self) -> dict[str, Any]:
        """``run.json``; empty before there is one."""
        return read_state(self.folder) if (self.folder / "run.json").exists() else {}

    def ledger(self, entry: str) -> list[dict[str, Any]]:
        text = (self.folder / "ledger.jsonl").read_text()
        lines = [json.loads(line) for line in text.splitlines(keepends=True) if line[-1] == "\n"]
        return [line for line in lines if line["entry"] == entry]

    def until(self, what: Callable[[], bool]) -> None:
        """Wait for something that happens while the run lives."""

        def come() -> bool:
            assert self.process.poll() is None, self.said()
            return what()

        until(come)

    def server(self) -> dict[str, Any]:
        """The embedded server's process, as the ledger names it."""
        held = [b for b in self.ledger("borrow") if "pid" in b]
        return held[-1]


def read_state(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "run.json").read_text()))


def gone(facts: dict[str, Any]) -> bool:
    return standing(facts) is Standing.GONE


def cancel(*arguments: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return mtrl("cancel", *arguments, cwd=cwd, **environ)


def cancelled(*arguments: str, cwd: Path, **environ: str) -> dict[str, Any]:
    """The object that ``mtrl cancel --json`` prints, with its exit code as ``code``."""
    ended = cancel(*arguments, "--json", cwd=cwd, **environ)
    [line] = ended.stdout.splitlines()
    return {**json.loads(line), "code": ended.returncode, "said": ended.stderr}
