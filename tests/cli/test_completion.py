"""Completion at TAB, as each shell asks for it and in the real shells.

zsh and fish where they are installed (apt-get install zsh fish); bash is.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.processes import ROOT, environment


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an experiment, an option and two runs of its own, and an ``mtrl`` on PATH."""
    (tmp_path / "conf" / "env").mkdir(parents=True)
    (tmp_path / "conf" / "mine.yaml").write_text("name: mine\n")
    (tmp_path / "conf" / "game.py").write_text("")
    (tmp_path / "conf" / "env" / "own.yaml").write_text("kind: openenv\n")
    for name in ("20261129-122135-a7aa", "20261130-090000-b8bb"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "run.json").write_text("{}")
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "mtrl"
    script.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m mtrl_cli "$@"\n')
    script.chmod(0o755)
    return tmp_path


def run(folder: Path, arguments: list[str], **extra: str) -> str:
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        arguments,
        cwd=folder,
        env=environment(PATH=path, HOME=str(folder), **extra),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout


def offers(folder: Path, line: str) -> list[str]:
    """What fish is given: one whole word a line."""
    asked = {
        "_MTRL_COMPLETE": "complete_fish",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "_TYPER_COMPLETE_ARGS": line,
    }
    return [told.split("\t")[0] for told in run(folder, ["mtrl"], **asked).splitlines()]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("mtrl train conf=mi", ["conf=mine"]),
        ("mtrl train conf=conf/", ["conf=conf/env/", "conf=conf/mine.yaml"]),
        ("mtrl train conf=./con", ["conf=./conf/env/", "conf=./conf/mine.yaml"]),
        (
            "mtrl train env=o",
            [f"env={o}" for o in ("openenv", "openenv_remote", "openenv_served", "own")],
        ),
        ("mtrl config show env=ow", ["env=own"]),
        ("mtrl train group.p", ["group.per_step="]),
        ("mtrl train +see", ["+seed="]),
        ("mtrl train train.loss=s", ["train.loss=sapo"]),
        (
            "mtrl train server.snapshots=n",
            ["server.snapshots=newest_only", "server.snapshots=null"],
        ),
        ("mtrl rollout eval.greedy=", ["eval.greedy=false", "eval.greedy=true"]),
        ("mtrl train seed=1 group.si", ["group.size="]),
        ("mtrl show 2026113", ["20261130-090000-b8bb"]),
        ("mtrl cancel la", ["last"]),
        ("mtrl trai", ["train"]),
        ("mtrl rollout policy=", ["policy=last"]),
        ("mtrl train server.base_url=", [""]),
        ("mtrl train --resume 2026113", ["20261130-090000-b8bb"]),
        ("mtrl export last --format pa", ["parquet"]),
    ],
)
def test_what_is_offered(folder: Path, line: str, offered: list[str]) -> None:
    assert offers(folder, line) == offered


def test_sections_are_offered_before_their_keys(folder: Path) -> None:
    found = offers(folder, "mtrl train g")
    assert found == ["group.", "group="]
    assert "conf=" in offers(folder, "mtrl train ")


BASH = r"""
eval "$(_MTRL_COMPLETE=source_bash mtrl)"
line=$1
COMP_WORDS=("${@:2}"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMP_LINE=$line; COMP_POINT=${#line}
_mtrl_completion mtrl
printf '%s\n' "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        # bash breaks at "=" and wants only what follows it.
        (["mtrl", "train", "conf", "=", "mi"], ["mine"]),
        (["mtrl", "train", "conf", "="], None),
        (["mtrl", "train", "seed", "=", "1", "train.loss", "=", "p"], ["ppo"]),
        (["mtrl", "train", "group.per"], ["group.per_step="]),
        (["mtrl", "watch", "20261129"], ["20261129-122135-a7aa"]),
    ],
)
def test_bash(folder: Path, words: list[str], offered: list[str] | None) -> None:
    script = [shutil.which("bash") or "bash", "--norc", "-c", BASH, "bash", "".join(words), *words]
    found = run(folder, script).split()
    if offered is None:
        assert {"mine", "blackjack"} <= set(found)
    else:
        assert found == offered


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish(folder: Path) -> None:
    script = "_MTRL_COMPLETE=source_fish mtrl | source; complete -C'mtrl train conf=mi'"
    assert run(folder, ["fish", "-c", script]).split() == ["conf=mine"]
    script = "_MTRL_COMPLETE=source_fish mtrl | source; complete -C'mtrl train train.loss=pp'"
    assert run(folder, ["fish", "-c", script]).split() == ["train.loss=ppo"]


ZSH = r"""
zmodload zsh/zpty
zpty shell zsh -f -i
type() { zpty -w -n shell "$1"; sleep $2 }
zpty -w shell 'PS1="> "; autoload -Uz compinit; compinit -u'
zpty -w shell 'eval "$(_MTRL_COMPLETE=source_zsh mtrl)"'
sleep 4
type $'\x15mtrl train conf=mi\t' 4
type $'\x01print -r -- GOT ' 1
zpty -w shell ''
sleep 1
zpty -r shell out
while zpty -r -t shell more; do out+=$more; done
print -r -- $out
zpty -d shell
"""


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh(folder: Path) -> None:
    """TAB is typed at an interactive zsh; the finished line is then printed."""
    out = run(folder, ["zsh", "-f", "-c", ZSH], TERM="dumb")
    assert "GOT mtrl train conf=mine" in out
