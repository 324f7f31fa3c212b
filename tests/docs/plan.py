"""What is run of the documents' commands, and what cannot be run here.

A line of a ``bash`` block is run as it stands, unless it is named here with the reason. Names that
stand for a reader's own are replaced by those of the world that the line is run in.
"""

from collections.abc import Mapping

_INSTALLS = "installs packages; .ci/run installs mtrl in a fresh environment"
_CHANGES = "changes which packages are installed"
_SERVER = "needs a training service with a GPU, or a key; tests/servers and tests/peers have both"
_REMOTE = "needs an OpenEnv server elsewhere; tests/envs/test_served.py has one"
_SPIEL = "needs open_spiel and a clone of OpenEnv; tests/peers has it"
_SINKS = "needs the packages of the extra; tests/sinks has them"
_QUEUE = "needs a Ray cluster with a TransferQueue; tests/peers/test_transferqueue.py has one"
_MINUTES = "measures for minutes on a quiet machine"

CANNOT: Mapping[str, str] = {
    "python -m venv .venv && . .venv/bin/activate": _INSTALLS,
    "python -m pip install -e '.[dev]' && python -m pytest -n logical": _INSTALLS,
    "python -m pip install . && mtrl train conf=blackjack": _INSTALLS,
    "python -m pip install .": _INSTALLS,
    "pre-commit install": "writes a hook into the checkout",
    "python -m pip install 'mtrl-cli[e2b]'": _INSTALLS,
    "python -m pip install 'mtrl-cli[tensorboard]'": _INSTALLS,
    "python -m pip install open_spiel": _INSTALLS,
    "git clone --depth 1 https://github.com/huggingface/OpenEnv": _SPIEL,
    "python -m pip install --no-deps"
    ' "openenv-openspiel-env @ file://$PWD/OpenEnv/envs/openspiel_env"': _INSTALLS,
    "python -m pip uninstall -y openenv openenv-core && python -m pip install openenv": _CHANGES,
    "mtrl train conf=openspiel_blackjack": _SPIEL,
    "OPENSPIEL_GAME=blackjack mtrl train conf=openspiel_blackjack env.kind=openenv_served": _SPIEL,
    "mtrl train conf=blackjack_remote env.base_url=http://HOST:8000": _REMOTE,
    "mtrl train conf=blackjack_tinker": _SERVER,
    "mtrl train conf=blackjack_twinkle server.base_url=http://HOST:8000": _SERVER,
    "mtrl train conf=blackjack_tinker server.tokenizer=/path/to/tokenizer.json": _SERVER,
    "mtrl doctor conf=blackjack_tinker server.tokenizer=/path/to/tokenizer.json": _SERVER,
    "mtrl train conf=blackjack_skyrl server.base_url=http://HOST:8000"
    " server.base_model=Qwen/Qwen3-4B server.tokenizer=/path/to/tokenizer.json": _SERVER,
    "mtrl train conf=blackjack_twinkle server.base_url=http://HOST:8000"
    " server.base_model=Qwen/Qwen3-4B server.tokenizer=/path/to/tokenizer.json": _SERVER,
    "mtrl train 'sinks=[tensorboard]'": _SINKS,
    "mtrl train 'sinks=[tensorboard,wandb]' sink.project=agents": _SINKS,
    "mtrl export last --format parquet": _SINKS.replace("sinks", "export"),
    "mtrl export last --format parquet --step 12": _SINKS.replace("sinks", "export"),
    "mtrl export last --format transferqueue --to 10.0.0.5:6379": _QUEUE,
    "python -m benchmarks.orchestration --json orchestration.json": _MINUTES,
    "python -m benchmarks.http_turn --turns 2000 --rounds 3 --json http_turn.json": _MINUTES,
    "python -m benchmarks.embedded --json embedded.json": _MINUTES,
    "python -m benchmarks.embedded_skyrl --json embedded_skyrl.json": _MINUTES,
    "python -m benchmarks.endurance --path embedded": _MINUTES,
    "python -m benchmarks.endurance --path e2b": _MINUTES,
    "python -m benchmarks.startup --json startup.json": _MINUTES,
    "python -m benchmarks.pipeline --repeat 3 --json pipeline.json": _MINUTES,
}

SERVES = {"mtrl serve": "http://", "mtrl dev e2b-emulator": "export E2B_API_URL="}
"""Lines that serve until Ctrl-C, and what they print when they are ready."""

FIGURES = {
    "--step 40": "--step 2",
    "last@20": "last@2",
    "12/3": "3/1",
    "group.size=16": "group.size=4",
    "group.size=8,16": "group.size=2,4",
    "eval.games=500": "eval.games=20",
    "train.steps=10": "train.steps=3",
    "train.steps=300": "train.steps=3",
}
"""Figures of a run that learns, and those of one that is over soon."""
