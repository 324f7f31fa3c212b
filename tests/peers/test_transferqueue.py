"""``mtrl export --format transferqueue`` into a real TransferQueue 0.1.11 in a Ray cluster, whose
GRPO sampler hands the groups to a trainer.

Needs an environment of its own (1.6 GB; Ray, torch) that has mtrl too:

    python -m venv ~/.venvs/transferqueue
    ~/.venvs/transferqueue/bin/pip install torch==2.13.0
    ~/.venvs/transferqueue/bin/pip install -e '.[transferqueue]'
    python -m pytest -m peer -rs tests/peers/test_transferqueue.py

MTRL_TRANSFERQUEUE_PYTHON names its interpreter when it is elsewhere.
"""

import json
import math
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.peers.venvs import interpreter
from tests.report.folder import RUN, make_run

PYTHON = interpreter("transferqueue")

pytestmark = [
    pytest.mark.peer,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not PYTHON.is_file(), reason=f"no {PYTHON}: see the module's docstring"),
]

ENV = {
    **os.environ,
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray gives its workers the lowest priority, which starves them where others are busy.
    "RAY_worker_niceness": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
}

TRAINER = """
import json, sys
import ray
import transfer_queue as tq

ray.init(num_cpus=4, include_dashboard=False, _node_ip_address="127.0.0.1", _temp_dir=sys.argv[1],
         object_store_memory=100 * 2**20, log_to_driver=False)
if sys.argv[2] == "queue":
    sampler = tq.GRPOGroupNSampler(n_samples_per_prompt=4)
    tq.init({"controller": {"sampler": sampler, "polling_mode": True},
             "backend": {"SimpleStorage": {"num_data_storage_units": 1}}})
print(json.dumps(ray.get_runtime_context().gcs_address), flush=True)
FIELDS = ["input_ids", "prompts", "responses", "response_mask", "rollout_log_probs", "advantages",
          "rewards", "policy_version"]
for line in sys.stdin:
    answer = None
    if line.strip() == "take":
        client = tq.get_client()
        meta = client.get_meta(data_fields=FIELDS, batch_size=4, partition_id="train",
                               task_name="actor")
        answer = []
        if meta.size:
            data = client.get_data(meta)
            columns = {name: [row.tolist() for row in data[name].unbind()] for name in FIELDS}
            answer = [
                {"tag": meta.custom_meta[i], **{name: columns[name][i] for name in FIELDS}}
                for i in range(meta.size)
            ]
    elif line.strip() == "clear":
        tq.kv_clear(list(tq.kv_list("train")["train"]), "train")
    print(json.dumps(answer), flush=True)
if sys.argv[2] == "queue":
    tq.close()
ray.shutdown()
"""


class Trainer:
    """A trainer's process, with a Ray cluster of its own."""

    def __init__(self, folder: Path, mode: str) -> None:
        # The paths of Ray's sockets are long already.
        self._ray = tempfile.mkdtemp(prefix="ray")
        self._log = folder / "trainer.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [PYTHON, "-c", TRAINER, self._ray, mode],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=ENV,
                start_new_session=True,
            )
        self.address = ""

    def begin(self) -> None:
        """Wait until its cluster, and its queue, can be reached."""
        self.address = self._answer()

    def ask(self, what: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        return self._answer()

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(120)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            shutil.rmtree(self._ray, ignore_errors=True)

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with suppress(ValueError):  # what Ray prints
                return json.loads(line)
        raise AssertionError(self._log.read_text())


@pytest.fixture(params=["queue"])
def trainer(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Trainer]:
    made = Trainer(tmp_path, request.param)
    try:
        made.begin()
        yield made
    finally:
        made.end()


def export(runs: Path, address: str, **env: str) -> tuple[int, str]:
    command = ["export", RUN, "--runs-dir", str(runs), "--format", "transferqueue"]
    done = subprocess.run(
        [PYTHON, "-m", "mtrl_cli", *command, "--to", address],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=Path(__file__).parents[2],
        env={**ENV, **env},
    )
    assert done.stdout == ("train\n" if done.returncode == 0 else "")
    return done.returncode, done.stderr


def test_a_trainer_gets_whole_groups_each_exactly_once(tmp_path: Path, trainer: Trainer) -> None:
    runs = tmp_path / "runs"
    make_run(runs)
    assert export(runs, trainer.address) == (0, "2 groups, 8 trajectories\n")
    taken = [trainer.ask("take"), trainer.ask("take")]
    assert [[sample["tag"]["group"] for sample in group] for group in taken] == [[0] * 4, [1] * 4]
    assert [[sample["tag"]["member"] for sample in group] for group in taken] == [[0, 1, 2, 3]] * 2
    advantage = 1.5 / math.sqrt(0.75)  # returns 1, −1, −1, −1
    tag = taken[0][0].pop("tag")
    assert (tag["run"], tag["step"], tag["policy"], tag["outcome"]) == (RUN, 1, "p0", "trained")
    assert taken[0][0] == {
        "input_ids": [632, 592, 198, 607, 627],
        "prompts": [632, 592, 198],
        "responses": [607, 627],
        "response_mask": [1, 1],
        "rollout_log_probs": [-0.5, -0.25],
        "advantages": pytest.approx([advantage, advantage]),
        "rewards": [1.0],
        "policy_version": [0],
    }
    assert trainer.ask("take") == []
    assert export(runs, trainer.address) == (0, "0 groups, 0 trajectories; 2 were sent before\n")
    assert trainer.ask("take") == []
    trainer.ask("clear")
    assert export(runs, trainer.address) == (0, "0 groups, 0 trajectories; 2 were sent before\n")
    assert trainer.ask("take") == []


@pytest.mark.parametrize("trainer", ["none"], indirect=True)
def test_a_cluster_without_a_queue_is_told(tmp_path: Path, trainer: Trainer) -> None:
    runs = tmp_path / "runs"
    make_run(runs)
    code, told = export(runs, trainer.address)
    assert code == 2
    assert len(told.splitlines()) == 1
    assert "no TransferQueue runs there" in told
    code, told = export(runs, trainer.address, RAY_AUTH_TOKEN=secrets.token_hex(32))
    assert code == 2
    assert len(told.splitlines()) == 1
    assert "the Ray cluster refuses us: set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN" in told


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ray://127.0.0.1:{}"])
@pytest.mark.parametrize("listens", [False, True], ids=["nobody", "a stranger"])
def test_where_no_cluster_answers_one_line_says_so(
    tmp_path: Path, form: str, listens: bool
) -> None:
    runs = tmp_path / "runs"
    make_run(runs)
    with socket.socket() as stranger:
        stranger.bind(("", 0))
        if listens:
            stranger.listen()
        address = form.format(stranger.getsockname()[1])
        code, told = export(runs, address)
    assert code == 2
    assert len(told.splitlines()) == 1
    assert f"--to {address}: no Ray cluster answers" in told


def test_what_is_no_address_is_told(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    make_run(runs)
    code, told = export(runs, "trainer")
    assert (code, told.splitlines()) == (
        2,
        ["error: --to trainer: write HOST:6379, ray://HOST:10001 or auto"],
    )
