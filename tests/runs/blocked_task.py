"""A task that blocks the event loop for good, once it has said so."""

import os
import time
from pathlib import Path

from mtrl_cli.rollout.ports import TaskSample
from mtrl_cli.tasks.blackjack.task import Blackjack


class Blocked(Blackjack):
    def sample(self, seed: int) -> TaskSample:
        Path(os.environ["BLOCKED"]).touch()
        time.sleep(600)
        raise AssertionError("not reached")
