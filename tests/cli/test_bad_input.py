"""Bad input meets the real commands: one line, the right exit code, nothing left behind."""

import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from mtrl_cli.testing.policy_server import ScriptedPolicyServer
from tests.cli.processes import environment, mtrl

PICTURE_TASK = """
from mtrl_cli.tasks.blackjack.task import Blackjack


class Picture(Blackjack):
    def messages(self, sample, observation):
        picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
        return [{"role": "user", "content": [{"type": "text", "text": "look"}, picture]}]
"""

SMALL = ("eval.games=0", "train.steps=1", "group.size=2", "group.per_step=1", "train.lora_rank=8")


def on_server(url: str, key: str = "k") -> tuple[str, ...]:
    return (
        "server=tinker",
        f'server.base_url="{url}"',
        f"server.api_key={key}",
        "server.base_model=scripted",
        "server.tokenizer=mtrl-tiny",
        *SMALL,
    )


def told(result: subprocess.CompletedProcess[str]) -> str:
    """The one line of the error; with it there is no traceback and nothing on stdout."""
    assert "Traceback" not in result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith("error:")]
    assert len(lines) == 1
    return lines[0]


def test_an_unreachable_server(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    result = mtrl("train", *on_server(f"http://127.0.0.1:{port}"), cwd=tmp_path)
    assert result.returncode == 1
    assert f"no training server answers at http://127.0.0.1:{port}" in told(result)
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_api_key(tmp_path: Path) -> None:
    with ScriptedPolicyServer(api_key="right") as server:
        result = mtrl("train", *on_server(server.url, "wrong-key"), cwd=tmp_path)
    assert result.returncode == 1
    assert "does not take this API key" in told(result)
    assert "wrong-key" not in result.stderr + result.stdout
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_base_model(tmp_path: Path) -> None:
    with ScriptedPolicyServer(models=("scripted-large",)) as server:
        result = mtrl("train", *on_server(server.url), cwd=tmp_path)
    assert result.returncode == 2
    assert "did you mean 'scripted-large'?" in told(result)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_cannot_train_all_weights(tmp_path: Path) -> None:
    with ScriptedPolicyServer() as server:
        result = mtrl("train", *on_server(server.url), "train.lora_rank=null", cwd=tmp_path)
        assert server.models == {}
    assert result.returncode == 2
    assert "train.lora_rank" in told(result)


def test_kl_on_a_server_that_does_not_keep_the_initial_policy(tmp_path: Path) -> None:
    with ScriptedPolicyServer() as server:
        asked = on_server(server.url)
        result = mtrl("train", *asked, "train.kl=0.1", "server.snapshots=live", cwd=tmp_path)
        assert server.models == {}
    assert result.returncode == 2
    assert "its snapshots are live" in told(result)


@pytest.mark.parametrize("command", ["train", "rollout"])
def test_an_image_in_a_prompt(tmp_path: Path, command: str) -> None:
    (tmp_path / "picture.py").write_text(PICTURE_TASK)
    before = set(psutil.Process().children(recursive=True))
    result = mtrl(
        command,
        *SMALL,
        "task.entrypoint=picture.py:Picture",
        cwd=tmp_path,
        MTRL_HOME=str(tmp_path / "home"),
    )
    assert result.returncode == 2
    assert "text" in told(result)
    assert set(psutil.Process().children(recursive=True)) == before
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in _line(p)]


def test_an_entrypoint_that_is_not_there(tmp_path: Path) -> None:
    """Found out when it is loaded; told with the line that names it."""
    (tmp_path / "x.yaml").write_text(
        "defaults: [config, _self_]\nname: x\ntask:\n  entrypoint: nothing.py:Here\n"
    )
    result = mtrl("train", "conf=./x.yaml", cwd=tmp_path)
    assert result.returncode == 2
    assert f"there is no file '{tmp_path}/nothing.py'; a relative path is looked" in told(result)
    assert "   at: x.yaml:4" in result.stderr.splitlines()
    assert [path.name for path in tmp_path.iterdir()] == ["x.yaml"]


def test_an_unknown_policy(tmp_path: Path) -> None:
    result = mtrl(
        "rollout",
        *SMALL,
        'policy="tinker://nobody/sampler_weights/none"',
        cwd=tmp_path,
        MTRL_HOME=str(tmp_path / "home"),
    )
    assert result.returncode == 1
    assert "tinker://nobody/sampler_weights/none" in told(result)


def _line(process: psutil.Process) -> str:
    return " ".join(process.info["cmdline"] or []) if process.pid != os.getpid() else ""


@pytest.mark.parametrize(
    ("folder", "says"),
    [
        ("taken/runs", "taken' is a file"),
        ("/proc/runs", "'/proc' is not writable; choose another folder: run.dir=FOLDER"),
        ('"a\\0b"', "no text here holds a NUL character"),
    ],
)
@pytest.mark.parametrize("dry", [True, False])
def test_a_folder_that_cannot_be_made(tmp_path: Path, folder: str, says: str, dry: bool) -> None:
    (tmp_path / "taken").write_text("")
    (tmp_path / "x.yaml").write_text(f"defaults: [blackjack, _self_]\nrun: {{dir: {folder}}}\n")
    options = ["--dry-run"] if dry else []
    result = mtrl("rollout", "conf=./x.yaml", *options, cwd=tmp_path)
    assert result.returncode == 2
    assert says in told(result)
    assert told(result).startswith("error: run.dir: ")


def test_a_disk_that_is_full_from_the_start(tmp_path: Path) -> None:
    """Stood in for by a limit on the length of files."""
    asked = shlex.join([sys.executable, "-m", "mtrl_cli", "rollout"])
    result = subprocess.run(
        ["sh", "-c", f"ulimit -f 0; exec {asked}"],
        cwd=tmp_path,
        env=environment(MTRL_HOME=str(tmp_path / "home")),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 1
    assert told(result) == "error: no run can be written in 'runs': File too large"
    assert " hint: make room there, or choose another folder: run.dir=FOLDER" in result.stderr
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_closed_standard_output_is_no_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mtrl_cli", "rollout", "--dry-run"]
    closed = subprocess.run(
        ["sh", "-c", '"$@" >&- 2>&-', "sh", *command], cwd=tmp_path, timeout=60, check=False
    )
    assert closed.returncode == 0
