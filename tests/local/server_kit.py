"""A real server process on loopback with a tiny random model, and a plain client for it."""

import atexit
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from mtrl_cli.local.engine import Shape
from mtrl_cli.local.engine.weights import initial, save_base

REPOSITORY = Path(__file__).resolve().parents[2]
SHAPE = Shape(vocab=48, width=32, layers=1, heads=2, context=128)
BASE_MODEL = "mtrl-tiny"


def make_base(folder: Path, shape: Shape = SHAPE) -> Path:
    folder.mkdir(exist_ok=True)
    weights = initial(shape, 7)
    for name, value in weights.items():  # nothing exactly zero, so that every gradient is
        weights[name] = value + 0.02
    save_base(folder, shape, weights)
    return folder


def command(store: Path, base: Path, *extra: str) -> list[str]:
    return [
        sys.executable, "-m", "mtrl_cli.local",
        "--store", str(store), "--base", str(base), *extra,
    ]  # fmt: skip


def environment(**extra: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), "OPENBLAS_NUM_THREADS": "1", **extra}


class Client:
    """The API by its names: `call` posts, `result` polls, `train_*` count the model's seq_id."""

    def __init__(self, url: str, headers: dict[str, str] | None = None) -> None:
        self.http = httpx.Client(base_url=url, headers=headers, timeout=60, trust_env=False)

    def post(self, path: str, body: object) -> httpx.Response:
        return self.http.post(f"/api/v1/{path}", json=body)

    def call(self, path: str, body: object) -> dict[str, Any]:
        response = self.post(path, body)
        assert response.status_code == 200, (path, response.status_code, response.text)
        return response.json()

    def get(self, path: str) -> dict[str, Any]:
        response = self.http.get(f"/api/v1/{path}")
        assert response.status_code == 200, (path, response.status_code, response.text)
        return response.json()

    def refused(self, path: str, body: object) -> tuple[int, str]:
        response = self.post(path, body)
        assert response.status_code >= 400, (path, response.text)
        return response.status_code, response.json()["detail"]

    def result(self, request_id: str) -> dict[str, Any]:
        while True:
            answer = self.call("retrieve_future", {"request_id": request_id})
            if answer.get("type") != "try_again":
                return answer

    def done(self, path: str, body: object) -> dict[str, Any]:
        return self.result(self.call(path, body)["request_id"])

    def session(self) -> str:
        return self.call("create_session", {"tags": [], "sdk_version": "test"})["session_id"]

    def model(self, session: str, number: int = 0, rank: int = 4, seed: int = 1) -> str:
        body = {
            "session_id": session, "model_seq_id": number, "base_model": BASE_MODEL,
            "lora_config": {"rank": rank, "seed": seed} if rank else None,
        }  # fmt: skip
        return self.done("create_model", body)["model_id"]

    def counters(self) -> dict[str, Any]:
        return self.get("debug/counters")

    def close(self) -> None:
        self.http.close()


def datum(tokens: Sequence[int], **inputs: Sequence[float]) -> dict[str, Any]:
    """A datum that predicts each next token; cross-entropy weights 1 unless inputs are given."""
    arrays: dict[str, Any] = dict(inputs) or {"weights": [1.0] * (len(tokens) - 1)}
    tensors = {
        name: {"data": list(values), "dtype": "float32", "shape": [len(values)]}
        for name, values in arrays.items()
    }
    targets = list(tokens[1:])
    tensors["target_tokens"] = {"data": targets, "dtype": "int64", "shape": [len(targets)]}
    chunk = {"type": "encoded_text", "tokens": list(tokens[:-1])}
    return {"model_input": {"chunks": [chunk]}, "loss_fn_inputs": tensors}


def backward(
    model: str,
    seq: int,
    data: list[dict[str, Any]],
    loss: str = "cross_entropy",
    config: dict[str, float] | None = None,
) -> dict[str, Any]:
    given = {"data": data, "loss_fn": loss, "loss_fn_config": config}
    return {"model_id": model, "seq_id": seq, "forward_backward_input": given}


def forward(model: str, seq: int, data: list[dict[str, Any]]) -> dict[str, Any]:
    given = {"data": data, "loss_fn": "cross_entropy"}
    return {"model_id": model, "seq_id": seq, "forward_input": given}


def step(model: str, seq: int, rate: float = 0.005, **adam: float) -> dict[str, Any]:
    return {"model_id": model, "seq_id": seq, "adam_params": {"learning_rate": rate, **adam}}


def sample(session: str, tokens: Sequence[int], max_tokens: int = 8, **more: Any) -> dict[str, Any]:
    params = {"max_tokens": max_tokens, "temperature": 1.0, **more.pop("params", {})}
    return {
        "sampling_session_id": session, "seq_id": 0, "num_samples": 1,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": list(tokens)}]},
        "sampling_params": params, **more,
    }  # fmt: skip


def start(
    store: Path, base: Path, *extra: str, env: dict[str, str] | None = None
) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    process = subprocess.Popen(
        command(store, base, *extra), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=env or environment(), start_new_session=True,
    )  # fmt: skip
    atexit.register(_kill, process)  # of a test that failed before it stopped its server
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        assert process.stderr is not None
        raise AssertionError(process.stderr.read())
    return process, json.loads(line)


def _kill(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()


def stop(process: subprocess.Popen[str]) -> str:
    """SIGTERM; the process's stderr."""
    process.terminate()
    _, errors = process.communicate(timeout=10)
    return errors


@contextmanager
def serving(
    store: Path,
    base: Path,
    *extra: str,
    env: dict[str, str] | None = None,
    headers: dict[str, str] | None = None,
) -> Iterator[Client]:
    process, ready = start(store, base, *extra, env=env)
    client = Client(ready["url"], headers)
    try:
        yield client
    finally:
        client.close()
        errors = stop(process)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors, errors


def until(condition: Any, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
