"""A sample of benchmarks/endurance.py: under faults nothing is lost, leaked or left to grow."""

import pytest

from benchmarks.endurance import endure, faults_of


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("path", "episodes"), [("embedded", 1600), ("e2b", 320)])
def test_a_run_under_faults_leaks_nothing(path: str, episodes: int) -> None:
    if path == "e2b":
        pytest.importorskip("e2b")
    result = endure(path, episodes)
    assert list(faults_of(result)) == []
    assert result["episodes"] == episodes
    met = result["met"]["server" if path == "embedded" else "sandboxes"]
    assert met["faults"] > 0
