"""Weights & Biases: a run of wandb.

Without a key, and where ``WANDB_MODE`` says nothing, it is offline: a login would ask for one on
the terminal.
"""

import os
from collections.abc import Mapping
from typing import Any

from mtrl_cli.sinks.run_info import RunInfo


class WeightsAndBiases:
    """Offline runs lie in ``wandb/`` of the run's folder; ``wandb sync`` uploads them."""

    def __init__(self, run: RunInfo) -> None:
        import wandb

        past = run.past()
        name = past.name(run.id)
        settings = wandb.Settings(console="off", disable_git=True, disable_code=True, silent=True)
        wandb.setup(settings)
        told = "WANDB_MODE" in os.environ or wandb.login(prompt=False, verify=False)
        self._run = wandb.init(
            project=run.project,
            id=name,
            name=f"{run.experiment} {name}",
            config={**run.settings, "mtrl.run": run.id},
            dir=str(run.folder),
            resume="allow",
            mode=None if told else "offline",
            settings=settings,
        )
        self._run.define_metric("*", step_metric="step")
        # Offline, wandb cannot say whether it has the run.
        if past.voids or not (self._run.resumed or self._run.offline):
            for point in past.points:
                self.log(point.step, point.figures)

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self._run.log({**figures, "step": step})

    def close(self, summary: Mapping[str, Any]) -> None:
        self._run.summary.update(dict(summary))
        self._run.finish()
