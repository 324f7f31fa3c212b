"""TensorBoard: event files in the run's folder.

An event file can take points back: a session that starts at a step purges what earlier files of
the folder hold from there on. A resumed attempt starts one at step 0 and writes all that stands,
so that also what a kill kept from the last file is there.
"""

import time
from collections.abc import Mapping
from typing import Any

from mtrl_cli.sinks.run_info import RunInfo


class TensorBoard:
    """``tensorboard --logdir runs``."""

    def __init__(self, run: RunInfo) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = Event, Summary
        past = run.past()
        self._writer = EventFileWriter(str(run.folder / "tensorboard"))
        if past.attempt > 1:
            purge = SessionLog(status=SessionLog.START)
            self._writer.add_event(Event(wall_time=time.time(), step=0, session_log=purge))
            for point in past.points:
                self._write(point.step, point.figures, point.time)

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self._write(step, figures, time.time())

    def close(self, summary: Mapping[str, Any]) -> None:
        self._writer.close()

    def _write(self, step: int, figures: Mapping[str, float], when: float) -> None:
        values = [self._summary.Value(tag=k, simple_value=v) for k, v in figures.items()]
        event = self._event(wall_time=when, step=step, summary=self._summary(value=values))
        self._writer.add_event(event)
