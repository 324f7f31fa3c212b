"""The official SDK finds a checkpoint of `mtrl serve` in its list, and downloads its weights.

The archive's route is in SDK 0.16.1 and 0.25.0 (0.38.0 has given it up):

    python -m venv ~/.venvs/tinker16 && ~/.venvs/tinker16/bin/pip install tinker==0.16.1
    python -m venv ~/.venvs/tinker25 && ~/.venvs/tinker25/bin/pip install tinker==0.25.0

MTRL_TINKER16_PYTHON and MTRL_TINKER25_PYTHON name their interpreters when they are elsewhere:

    python -m pytest -m peer -rs tests/peers/test_tinker_sdk_archive.py
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from tests.local.server_kit import make_base, serving
from tests.peers.venvs import interpreter

pytestmark = pytest.mark.peer

KEY = "tml-test-key"

SCRIPT = r"""
import json, sys, tarfile, urllib.request
import tinker

url, key, folder = sys.argv[1:4]
service = tinker.ServiceClient(base_url=url, api_key=key)
model = service.get_server_capabilities().supported_models[0].model_name
training = service.create_lora_training_client(base_model=model, rank=8, seed=3)
path = training.save_weights_for_sampler("snap").result().path
rest = service.create_rest_client()
listed = rest.list_checkpoints(path.split("/")[2]).result().checkpoints
archive = rest.get_checkpoint_archive_url_from_tinker_path(path).result()
with urllib.request.urlopen(archive.url) as reply, open(folder + "/a.tar", "wb") as file:
    file.write(reply.read())
with tarfile.open(folder + "/a.tar") as tar:
    tar.extractall(folder)
print(json.dumps({"path": path, "listed": [one.tinker_path for one in listed],
                  "sizes": [one.size_bytes for one in listed], "expires": str(archive.expires)}))
"""


@pytest.mark.parametrize("short", ["16", "25"])
def test_the_sdk_downloads_what_was_saved(tmp_path: Path, short: str) -> None:
    python = interpreter(f"tinker{short}")
    if not python.exists():
        pytest.skip(f"no SDK at {python}")
    base = make_base(tmp_path / "base")
    out = tmp_path / "out"
    out.mkdir()
    env = {**os.environ, "SERVER_KEY": KEY, "TINKER_TELEMETRY": "0"}
    with serving(
        tmp_path / "store",
        base,
        "--api-key-env",
        "SERVER_KEY",
        env={**env, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        headers={"X-API-Key": KEY},
    ) as client:
        url = str(client.http.base_url)
        done = subprocess.run(
            [str(python), "-c", SCRIPT, url, KEY, str(out)],
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["listed"] == [told["path"]]
    assert told["sizes"][0] > 0
    config = json.loads((out / "adapter_config.json").read_text())
    assert config["r"] == 8
    assert load_file(out / "adapter_model.safetensors")
