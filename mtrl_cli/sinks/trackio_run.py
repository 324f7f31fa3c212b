"""trackio: a run in its local database, or where its own variables point.

trackio prints, and tells what fails in warnings. Neither may reach the screen of a run: in its
modules ``print`` is silent, and a warning is the sink's failure.
"""

import sys
from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

from mtrl_cli.errors import MtrlError
from mtrl_cli.sinks.run_info import RunInfo


class Trackio:
    """``trackio show --project PROJECT``."""

    def __init__(self, run: RunInfo) -> None:
        import trackio

        past = run.past()
        name = past.name(run.id)
        self._warnings: list[str] = []
        self._mute()
        start = partial(
            trackio.init,
            project=run.project,
            name=name,
            group=run.experiment,
            config={**run.settings, "mtrl.run": run.id},
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        try:
            self._run = start(resume="must")
        except ValueError:  # it has no such run
            self._run = start(resume="never")
            for point in past.points:
                self.log(point.step, point.figures)
        self._check()

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self._run.log(dict(figures), step=step)
        self._check()

    def close(self, summary: Mapping[str, Any]) -> None:
        self._run.finish()
        self._check()

    def _mute(self) -> None:
        def warn(message: object, category: type = UserWarning, *_: Any, **__: Any) -> None:
            if not issubclass(category, FutureWarning | DeprecationWarning):
                self._warnings.append(str(message))

        def silent(*_: object, **__: object) -> None:
            pass

        heard = SimpleNamespace(warn=warn)
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] == "trackio":
                vars(module)["print"] = silent
                if "warnings" in vars(module):
                    vars(module)["warnings"] = heard

    def _check(self) -> None:
        if self._warnings:
            raise MtrlError(self._warnings[0])
