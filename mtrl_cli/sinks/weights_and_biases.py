"""Weights & Biases: a run of wandb.

Without a key, and where ``WANDB_MODE`` says nothing, it is offline: a login would ask for one on
the terminal.
"""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from mtrl_cli.sinks.run_info import RunInfo


class WeightsAndBiases:
    """Offline runs lie in ``wandb/`` of the run's folder; ``wandb sync`` uploads them."""

    def __init__(self, run: RunInfo) -> None:
        import wandb

        # Its log file lies in the run's folder; on a full disk each line would be a traceback.
        logging.raiseExceptions = False
        self._wandb = wandb
        with self._left_if_it_fails():
            self._run = self._opened(run)

    def _opened(self, run: RunInfo) -> Any:
        wandb = self._wandb
        past = run.past()
        name = past.name(run.id)
        settings = wandb.Settings(console="off", disable_git=True, disable_code=True, silent=True)
        wandb.setup(settings)
        told = "WANDB_MODE" in os.environ or wandb.login(prompt=False, verify=False)
        opened = wandb.init(
            project=run.project,
            id=name,
            name=f"{run.experiment} {name}",
            config={**run.settings, "mtrl.run": run.id},
            dir=str(run.folder),
            resume="allow",
            mode=None if told else "offline",
            settings=settings,
        )
        opened.define_metric("*", step_metric="step")
        # Offline, wandb cannot say whether it has the run.
        if past.voids or not (opened.resumed or opened.offline):
            for point in past.points:
                opened.log({**point.figures, "step": point.step})
        return opened

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        with self._left_if_it_fails():
            self._run.log({**figures, "step": step})

    def close(self, summary: Mapping[str, Any]) -> None:
        with self._left_if_it_fails():
            self._run.summary.update(dict(summary))
            self._run.finish()

    @contextmanager
    def _left_if_it_fails(self) -> Iterator[None]:
        """wandb speaks to a process of its own once more when ours ends, and prints a traceback
        when that one is gone; an early farewell is the last one."""
        try:
            yield
        except BaseException:
            with suppress(Exception):
                self._wandb.teardown()
            raise
