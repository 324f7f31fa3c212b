"""A real twinkle-kit server with its mock backends: started, waited for, and ended with all of
its processes."""

import os
import secrets
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.peers.venvs import interpreter

PYTHON = interpreter("twinkle")
_MARK = "MTRL_TWINKLE_PEER"
_START_SECONDS = 300

_CONFIG = """\
proxy_location: HeadOnly
http_options: {{host: 127.0.0.1, port: {port}}}
persistence: {{mode: memory}}
applications:
- name: server
  route_prefix: /api/v1
  import_path: server
  args: {{supported_models: [mock-model]}}
  deployments:
  - {{name: GatewayServer, max_ongoing_requests: 50, ray_actor_options: {{num_cpus: 0.1}}}}
- name: m
  route_prefix: /api/v1/model/mock-model
  import_path: model
  args:
    backend: mock
    model_id: mock-model
    nproc_per_node: 1
    device_group: {{name: model, ranks: 1, device_type: CPU}}
    device_mesh: {{device_type: CPU, dp_size: 1}}
  deployments: [{{name: ModelManagement, ray_actor_options: {{num_cpus: 0.1}}}}]
- name: s
  route_prefix: /api/v1/sampler/mock-model
  import_path: sampler
  args:
    sampler_type: mock
    model_id: mock-model
    nproc_per_node: 1
    device_group: {{name: sampler, ranks: 1, device_type: CPU}}
    device_mesh: {{device_type: CPU, dp_size: 1}}
  deployments: [{{name: SamplerManagement, ray_actor_options: {{num_cpus: 0.1}}}}]
"""


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The address of a server that is ready; ``folder`` holds its logs and what it saves.

    Ray's session files go to a short path of their own, as socket names are bounded.
    """
    port, ray_port = _free_port(), _free_port()
    mark = uuid.uuid4().hex
    (folder / "twinkle.yaml").write_text(_CONFIG.format(port=port))
    environ = {
        **os.environ,
        _MARK: mark,
        "PATH": f"{PYTHON.parent}:{os.environ['PATH']}",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        # A busy machine: Ray's workers have the lowest priority, and five seconds to begin.
        "RAY_worker_niceness": "0",
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "120",
        "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "120",
        "RAY_AUTH_MODE": "token",  # newer versions of Ray insist, and each process has its own
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_TMPDIR": f"/tmp/tk-{mark[:8]}",
        "TWINKLE_DEFAULT_SAVE_DIR": str(folder / "saved"),
        "RAY_ADDRESS": f"127.0.0.1:{ray_port}",
    }
    Path(environ["RAY_TMPDIR"]).mkdir()
    head = {key: value for key, value in environ.items() if key != "RAY_ADDRESS"}
    started: list[subprocess.Popen[bytes]] = []
    try:
        ray = [
            "ray", "start", "--head", "--block", f"--port={ray_port}", "--num-cpus=8",
            "--num-gpus=0", "--include-dashboard=false", "--disable-usage-stats",
            "--node-ip-address=127.0.0.1",
        ]  # fmt: skip
        started.append(_run(ray, folder / "ray.log", head))
        _wait(folder / "ray.log", "Ray runtime started", started[0])
        launch = ["twinkle-server", "launch", "-c", str(folder / "twinkle.yaml")]
        started.append(_run(launch, folder / "launch.log", environ))
        _wait(folder / "launch.log", "All applications started", started[1])
        yield f"http://127.0.0.1:{port}"
    finally:
        for process in reversed(started):
            process.send_signal(signal.SIGTERM)
        for process in started:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        _end_all(mark)
        subprocess.run(["rm", "-rf", environ["RAY_TMPDIR"]], check=True)


def _run(command: list[str], log: Path, environ: dict[str, str]) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        return subprocess.Popen(
            ["nice", "-n", "5", *command], env=environ, stdin=subprocess.DEVNULL,
            stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip


def _wait(log: Path, text: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while text not in log.read_text(errors="replace"):
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"no {text!r}: {log.read_text(errors='replace')[-3000:]}")
        time.sleep(0.2)


def _end_all(mark: str) -> None:
    """End what the server has left behind: every process that carries the mark."""
    deadline = time.monotonic() + 20
    while left := _marked(mark):
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


def _marked(mark: str) -> list[int]:
    wanted, found = f"{_MARK}={mark}".encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in path.read_bytes() and not _is_zombie(path.parent):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def _is_zombie(process: Path) -> bool:
    return (process / "stat").read_text().rpartition(")")[2].split()[0] == "Z"


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
