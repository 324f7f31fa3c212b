"""The documents' commands, run as they stand in a folder whose ``conf`` makes everything small.

`tests.docs.plan` names what cannot be run here, with the reason.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.processes import environment
from tests.docs.pages import PAGES, ROOT
from tests.docs.plan import CANNOT, FIGURES, SERVES
from tests.docs.shell import fenced
from tests.docs.world import SAVED, lay_out

pytestmark = pytest.mark.timeout(900)

LINES = list(dict.fromkeys(line.text for page in PAGES.values() for line in fenced(page)))
SMALL = {
    "group": {"size": 2, "per_step": 2},
    "train": {"steps": 2, "kl_end_step": None},
    "eval": {"games": 8},
}


def made_small(file: Path) -> None:
    """Shorten an experiment that a user wrote, or that comes with mtrl."""
    values: dict[str, Any] = yaml.safe_load(file.read_text())
    for section, keys in SMALL.items():
        values[section] = {**values.get(section, {}), **keys}
    if "e2b" in file.stem:
        values["env"] = {**values.get("env", {}), "e2b": {"per_second": 50}}
    file.write_text(yaml.safe_dump(values))


@dataclass(frozen=True)
class Desk:
    """A folder, and a shell in it."""

    folder: Path
    environ: dict[str, str]

    def shell(self, line: str) -> subprocess.CompletedProcess[str]:
        process = subprocess.Popen(
            ["bash", "-c", f"set -o pipefail; {line}"],
            cwd=self.folder,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, told = process.communicate()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # the shell, and what it started
            raise
        return subprocess.CompletedProcess(line, process.returncode, out, told)

    def runs(self) -> list[Path]:
        return sorted(one for one in (self.folder / "runs").glob("2*") if one.is_dir())


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """Two finished runs, and the programs on the path."""
    folder = tmp_path_factory.mktemp("desk")
    programs = tmp_path_factory.mktemp("programs")
    for name, module in (("mtrl", " -m mtrl_cli"), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}"{module} "$@"\n')
        (programs / name).chmod(0o700)
    shutil.copytree(ROOT / "conf", folder / "conf")
    lay_out(folder)
    for file in [*(folder / "conf").glob("*.yaml"), *(folder / "elsewhere").glob("*.yaml")]:
        made_small(file)
    for file in (folder / "guess.yaml", folder / "examples/custom_task/fifteen.yaml"):
        made_small(file)
    environ = environment(
        PATH=f"{programs}:{os.environ['PATH']}",
        MTRL_HOME=str(tmp_path_factory.mktemp("home")),
        BROWSER="true",
    )
    made = Desk(folder, environ)
    for _ in range(2):
        done = made.shell("mtrl train conf=blackjack")
        assert done.returncode == 0, done.stderr
    return made


@pytest.fixture
def fresh(desk: Desk, tmp_path: Path) -> Desk:
    """A copy of the desk: what a line changes reaches no other."""
    folder = tmp_path / "desk"
    shutil.copytree(desk.folder, folder, symlinks=True)
    return Desk(folder, dict(desk.environ))


def as_it_is_typed(line: str, desk: Desk) -> str:
    """The line with the names of this world."""
    first, second = (run.name for run in desk.runs())
    uri = "tinker://none"
    if "policy=URI" in line:
        told = (desk.folder / "runs" / second / "commits.jsonl").read_text()
        uri = re.findall(r"tinker://[^\"]+sampler_weights[^\"]+", told)[-1]
    names = {SAVED: second, "a7aa": first, "b81c": second, "7f70": first[-4:], **FIGURES}
    names |= {"verify RUN": f"verify {first}", "policy=URI": f"policy={uri}"}
    names |= {"give-up RUN": f"give-up {second} --yes"}  # it asks
    for name, ours in names.items():
        line = line.replace(name, ours)
    return line


def test_what_is_not_run_is_in_the_documents() -> None:
    assert set(CANNOT) <= set(LINES)
    assert set(SERVES) <= set(LINES)
    assert all(any(words in line for line in LINES) for words in FIGURES)


@pytest.mark.long
@pytest.mark.parametrize("line", [one for one in LINES if one not in {*CANNOT, *SERVES}])
def test_a_command_does_what_it_says(line: str, fresh: Desk, request: Any) -> None:
    if "jq" in line.split() and shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    if "conf=blackjack_e2b" in line:
        fresh.environ.update(request.getfixturevalue("emulator"))
    if "best" in line and "--name best" not in line:
        first = fresh.runs()[0].name
        assert fresh.shell(f"mtrl publish {first} --name best").returncode == 0
    if "store --" in line:  # what it removes is missed by no other line
        home = fresh.folder.parent / "home"
        shutil.copytree(fresh.environ["MTRL_HOME"], home)
        fresh.environ["MTRL_HOME"] = str(home)
    typed = as_it_is_typed(line, fresh)
    done = fresh.shell(typed)
    assert done.returncode == 0, f"{typed}\n{done.stdout}\n{done.stderr}"
    assert "\x1b" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def served(line: str, desk: Desk) -> Iterator[str]:
    """What a line that serves says until it is ready; then Ctrl-C."""
    process = subprocess.Popen(
        ["bash", "-c", f"exec {line}"],
        cwd=desk.folder,
        env=desk.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield from iter(process.stdout.readline, "")
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode in (0, 130)


@pytest.mark.long
@pytest.mark.parametrize("line", SERVES)
def test_what_serves_says_when_it_is_ready_and_ends_with_ctrl_c(line: str, fresh: Desk) -> None:
    # Another server may have the port of the line as it stands.
    told = served(line + (" --port 0" if line == "mtrl serve" else ""), fresh)
    assert any(SERVES[line] in said for said in told)
    told.close()  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def emulator(desk: Desk) -> Iterator[dict[str, str]]:
    """What `mtrl dev e2b-emulator` says to export."""
    told = served("mtrl dev e2b-emulator", desk)
    found: dict[str, str] = {}
    wanted = {"E2B_API_URL", "E2B_SANDBOX_URL", "E2B_API_KEY"}
    for said in told:
        if match := re.match(r"export (\w+)=(\S+)", said):
            found[match[1]] = match[2].strip("'\"")
        if wanted <= set(found):
            break
    assert wanted <= set(found)
    yield found
    told.close()  # type: ignore[attr-defined]
