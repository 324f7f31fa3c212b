"""Run SkyRL's Tinker server on the CPU; run by SkyRL's own Python, see test_skyrl.py.

    python skyrl_server.py MODEL_FOLDER WORK_FOLDER PORT [BACKEND_SETTINGS_JSON]

Two things keep SkyRL from an ordinary Python 3.11: pydantic wants the `TypedDict` of
typing_extensions there, and the API starts its engine through `uv run`. Both are replaced.
"""

import json
import sys
import typing
from pathlib import Path

import typing_extensions

typing.TypedDict = typing_extensions.TypedDict  # type: ignore[assignment]


def serve(model: str, work: str, port: str, settings: str = "{}") -> None:
    import uvicorn
    from skyrl.tinker import api
    from skyrl.tinker.config import EngineConfig, config_to_argv

    def command(parent: object, config: EngineConfig) -> list[str]:
        return [sys.executable, __file__, "engine", *config_to_argv(config)]

    api._build_uv_run_cmd_engine = command
    # The parent's command line is looked up only to be handed to `uv run`.
    folder = Path(work)
    folder.mkdir(parents=True, exist_ok=True)
    fields = {
        "base_model": model,
        "backend": "jax",
        "backend_config": {
            "max_lora_adapters": 3,
            "max_lora_rank": 8,
            "sample_max_num_sequences": 64,
            "train_micro_batch_size": 8,
            **json.loads(settings),
        },
        "checkpoints_base": str(folder / "checkpoints"),
        "database_url": f"sqlite:///{folder / 'tinker.db'}",
        "session_cleanup_interval_sec": 2,
        "session_timeout_sec": 20,
    }
    api.app.state.engine_config = EngineConfig.model_validate(fields)
    print(json.dumps({"port": int(port)}), flush=True)
    uvicorn.run(api.app, host="127.0.0.1", port=int(port), log_level="warning")


def engine() -> None:
    import runpy

    sys.argv = sys.argv[1:]
    runpy.run_module("skyrl.tinker.engine", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    if sys.argv[1] == "engine":
        engine()
    else:
        serve(*sys.argv[1:])
