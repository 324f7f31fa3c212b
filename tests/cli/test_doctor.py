"""`mtrl doctor`: against the embedded server, scripted servers with faults, and every kind of
environment. What it says is read from its JSON; what it leaves is looked for on disk and at the
servers."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mtrl_cli.chat.tokenizer import load_tokenizer
from tests.cli.world import World

_TOKENIZER = load_tokenizer("mtrl-tiny")
_END = _TOKENIZER.convert_tokens_to_ids("<|im_end|>")
ANSWER = [*_TOKENIZER.encode("stand"), _END]


class Consulted:
    """One run of the doctor: its exit code, and its findings by topic."""

    def __init__(self, done: "subprocess.CompletedProcess[str]") -> None:
        self.code = done.returncode
        self.text = done.stdout + done.stderr
        self.facts: dict[str, Any] = json.loads(done.stdout)

    def __getitem__(self, topic: str) -> list[str]:
        """The states of a topic's findings."""
        return [one["state"] for one in self.facts["checks"] if one["topic"] == topic]

    def says(self, topic: str) -> str:
        return " | ".join(
            f"{one['says']} → {one['todo']}"
            for one in self.facts["checks"]
            if one["topic"] == topic
        )

    @property
    def failed(self) -> set[str]:
        return {one["topic"] for one in self.facts["checks"] if one["state"] == "FAIL"}

    @property
    def skipped(self) -> set[str]:
        return {one["topic"] for one in self.facts["checks"] if one["state"] == "SKIP"}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def doctor(world: World, *arguments: str, **extra: str) -> Consulted:
    return Consulted(world.mtrl("doctor", "--json", *arguments, **extra))


def test_the_default_experiment_is_well_and_nothing_is_left(world: World) -> None:
    done = world.mtrl("doctor")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert {line.split()[0] for line in lines[:-1]} == {"OK"}
    assert lines[-1] == f"{len(lines) - 1} OK, 0 WARN, 0 FAIL, 0 SKIP"
    for words in (
        "honours its seed",
        "stepped with play: reward",
        "serves mtrl-tiny",
        "snapshots: immutable (known)",
        "a sampled stop token ends the turn, and comes back",
        "the trainer's logprobs differ from the sampler's by",
        "everything that was borrowed was given back",
    ):
        assert words in done.stdout
    assert not (world.folder / "runs").exists()
