"""In the background the terminal is the shell's: lines are printed there, and nothing is drawn."""

import io

from mtrl_cli.display.live import LivePresenter
from mtrl_cli.display.plan import DisplayPlan
from mtrl_cli.display.state import RunState
from mtrl_cli.display.terminal import Screen
from mtrl_cli.display.views import Stopping
from mtrl_cli.training.events import StepFinished

HIDE_CURSOR = "\x1b[?25l"


class Job:
    """A live screen that goes to the background and comes back."""

    def __init__(self, *, background: bool) -> None:
        self.background, self.output = background, io.StringIO()
        self.presenter = LivePresenter(
            RunState(DisplayPlan("train blackjack"), 0.0),
            Screen(self.output),
            redact=str,
            size=(80, 16),
            background=lambda: self.background,
            clock=lambda: 1.0,
        )

    def drawn(self) -> str:
        """What one drawing writes."""
        before = len(self.output.getvalue())
        self.presenter.tick()
        return self.output.getvalue()[before:]


def test_a_job_that_begins_in_the_background_prints_its_lines_and_draws_nothing() -> None:
    job = Job(background=True)
    assert job.drawn() == ""
    job.presenter.observe(StepFinished(1, 2, "u/step-1", {"reward": 0.5}))
    told = job.drawn()
    assert "0.500" in told
    assert "\x1b" not in told
    job.presenter.stopping(Stopping(1, "SIGTERM", 0.0))
    job.presenter.close()
    assert "stopping (SIGTERM): nothing new starts" in job.output.getvalue()
    assert "\x1b" not in job.output.getvalue()


def test_a_job_that_is_put_into_the_background_paints_over_nothing() -> None:
    job = Job(background=False)
    assert HIDE_CURSOR in job.drawn()
    job.background = True
    assert [job.drawn(), job.drawn()] == ["", ""]
    job.background = False
    again = job.drawn()
    assert HIDE_CURSOR in again
    assert "\x1b[1A" not in again  # what stands above is the shell's
    job.background = True
    length = len(job.output.getvalue())
    job.presenter.close()
    assert job.output.getvalue()[length:] == ""
