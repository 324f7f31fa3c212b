"""MLflow: a run in the store that ``MLFLOW_TRACKING_URI`` names, or in MLflow's local default.

The client gives a run its id; ours stands in the tag ``mtrl.run``, and what the tracker calls the
run in ``mtrl.name``, by which a resumed attempt finds it again. Values and names are made to fit
what MLflow takes.
"""

import logging
import os
import re
import time
from collections.abc import Mapping
from typing import Any

from mtrl_cli.sinks.run_info import RunInfo

_BATCH = 1000
"""Metrics that one call takes."""
_PARAMS = 100
_LONGEST = 500
"""Characters of a setting; stores differ, none takes less."""
_UNFIT = re.compile(r"[^\w\-. :/]")
_STATUS = {"finished": "FINISHED", "cancelled": "KILLED"}


class MLflow:
    """``mlflow ui``, where the default store is used."""

    def __init__(self, run: RunInfo) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow import entities
        from mlflow.tracking import MlflowClient

        for name in ("mlflow", "alembic"):  # they report a new database on stderr
            logging.getLogger(name).setLevel(logging.ERROR)
        self._entities = entities
        self._client = MlflowClient()
        past = run.past()
        name = past.name(run.id)
        experiment = self._experiment(run.project)
        known = self._runs(experiment, "mtrl.name", name)
        if known:
            self._run = known[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            return
        tags = {"mtrl.run": run.id, "mtrl.name": name}
        made = self._client.create_run(experiment, tags=tags, run_name=f"{run.experiment} {name}")
        self._run = made.info.run_id
        for former in self._runs(experiment, "mtrl.run", run.id):
            if former.info.run_id != self._run:
                self._client.set_tag(former.info.run_id, "mtrl.goes_on_as", name)
        self._settings(run.settings)
        for point in past.points:
            self._write(point.step, point.figures, point.time)

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self._write(step, figures, time.time())

    def close(self, summary: Mapping[str, Any]) -> None:
        for name, value in summary.items():
            self._client.set_tag(self._run, f"mtrl.{name}", str(value))
        status = _STATUS.get(str(summary.get("status")), "FAILED")
        self._client.set_terminated(self._run, status)

    def _experiment(self, name: str) -> str:
        """Its id; it is made where it is not there, perhaps by another run at the same time."""
        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self._client.create_experiment(name))
            except Exception:
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        return str(found.experiment_id)

    def _runs(self, experiment: str, tag: str, value: str) -> list[Any]:
        return list(self._client.search_runs([experiment], f"tags.`{tag}` = '{value}'"))

    def _settings(self, settings: Mapping[str, str]) -> None:
        params = [
            self._entities.Param(_UNFIT.sub("_", name), value[:_LONGEST])
            for name, value in settings.items()
        ]
        for at in range(0, len(params), _PARAMS):
            self._client.log_batch(self._run, params=params[at : at + _PARAMS])

    def _write(self, step: int, figures: Mapping[str, float], when: float) -> None:
        metrics = [
            self._entities.Metric(_UNFIT.sub("_", name), value, int(when * 1000), step)
            for name, value in figures.items()
        ]
        for at in range(0, len(metrics), _BATCH):
            self._client.log_batch(self._run, metrics=metrics[at : at + _BATCH])
