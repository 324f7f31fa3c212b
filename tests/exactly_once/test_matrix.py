"""Exactly-once: every training call under every fault, and a kill around every line.

The whole of it is long; a fixed sample runs always. `python -m tests.exactly_once.report` runs it
too, and writes the tables in docs/exactly-once.md.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from mtrl_cli.testing import faults
from tests.cells import parameters
from tests.exactly_once import audit
from tests.exactly_once.calls import Result
from tests.exactly_once.killed import PRELUDE, places
from tests.exactly_once.matrix import CELLS, FIRST, RESUMED, SAMPLE
from tests.exactly_once.play import RESUME, Setting, attempt, served
from tests.exactly_once.zygote import Zygote


@pytest.mark.parametrize("once", parameters(CELLS, SAMPLE))
def test_cell(once: str, cell_result: Callable[[str], Result]) -> None:
    assert cell_result(once).flaws == []


def test_the_kills_are_around_every_line(zygote: Zygote, tmp_path: Path) -> None:
    """The list of lines is that of a real run, and so is that of a resumed one."""
    with served() as server:
        begin = ("train", *Setting(server.url, tmp_path / "runs").words)
        assert zygote.run(tmp_path, *begin, die=PRELUDE) < 0
        before = places(audit.the_run(tmp_path / "runs"))
        assert zygote.run(tmp_path, *RESUME, str(tmp_path / "runs")) == 0
        after = places(audit.the_run(tmp_path / "runs"))
    with served() as server:
        assert attempt(Setting(server.url, tmp_path / "whole"), None) is None
        whole = places(audit.the_run(tmp_path / "whole"))
    assert whole == Counter(FIRST)
    again = {"forward_backward", "optim_step", "save_state", "unload_model"}
    beyond = {"commit", "metrics", "group trained", "server_model returning"}
    new = {
        label
        for label in after - before
        if label.split()[0] not in again or label == "optim_step unknown"
    }
    assert new - beyond - {"server_session returning"} == set(RESUMED)


def test_the_audit_sees_a_step_that_was_executed_twice(zygote: Zygote, tmp_path: Path) -> None:
    """A server that is said to dedupe, and does not, gets the call a second time."""
    with served() as server:
        server.faults.add("optim_step", faults.drop_reply(), skip=1)
        assert attempt(Setting(server.url, tmp_path / "runs", dedupes=True), None) is None
        run = audit.the_run(tmp_path / "runs")
        [told] = audit.counted(run, server)
        assert told.startswith("optim_step 6 of model_1: 2 applied")
        assert "the snapshot of step 2 holds 3 optimizer steps" in list(audit.history(run, server))
        assert "model_1 was stepped 5 times on 4 batches" in list(audit.fresh(run, server))
        assert list(audit.verified(run)) == []  # the files alone cannot know
