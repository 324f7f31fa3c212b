"""The request to stop, from the side that asks and from the run's."""

import json
import threading
from pathlib import Path

import pytest

from mtrl_cli.runs.control import Ask, RunControl, request, requested
from tests.runs.live import until


@pytest.fixture
def heard(tmp_path: Path):  # type: ignore[no-untyped-def]
    """What a run hears, as it comes."""
    told: list[Ask] = []
    control = RunControl(tmp_path, 1, told.append)
    control.start()
    yield told
    control.close()
    control.close()
    assert "mtrl-control" not in {thread.name for thread in threading.enumerate()}


def test_a_request_only_rises_and_is_passed_on_once(tmp_path: Path, heard: list[Ask]) -> None:
    assert request(tmp_path, Ask.STOP, attempt=1) is Ask.STOP
    until(lambda: heard == [Ask.STOP])
    assert request(tmp_path, Ask.DRAIN, attempt=1) is Ask.STOP
    assert requested(tmp_path, attempt=1) is Ask.STOP
    request(tmp_path, Ask.KILL, attempt=1)
    until(lambda: heard == [Ask.STOP, Ask.KILL])


def test_the_request_of_another_attempt_is_not_for_this_one(
    tmp_path: Path, heard: list[Ask]
) -> None:
    request(tmp_path, Ask.KILL, attempt=2)
    beat = (tmp_path / "heartbeat").stat().st_mtime_ns
    until(lambda: (tmp_path / "heartbeat").stat().st_mtime_ns > beat)
    assert heard == []
    assert request(tmp_path, Ask.DRAIN, attempt=1) is Ask.DRAIN
    until(lambda: heard == [Ask.DRAIN])


@pytest.mark.parametrize("text", ["", "{torn", "[]", '{"ask": "dance", "attempt": 1}', "{}"])
def test_what_is_no_request_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "control").mkdir()
    (tmp_path / "control" / "stop.json").write_text(text)
    assert requested(tmp_path, attempt=1) is None


def test_requests_at_once_leave_the_largest(tmp_path: Path) -> None:
    asks = [Ask.DRAIN, Ask.KILL, Ask.STOP] * 5
    threads = [threading.Thread(target=request, args=(tmp_path, ask, 1)) for ask in asks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    told = json.loads((tmp_path / "control" / "stop.json").read_text())
    assert (told["ask"], told["attempt"]) == ("kill", 1)
    assert sorted(path.name for path in (tmp_path / "control").iterdir()) == ["lock", "stop.json"]
