"""`mtrl doctor` against a server that lies or fails in one phase for good: every check ends, each
in one line, something is named as failed, and no model that has a name is left at the server."""

import pytest

from mtrl_cli.testing import faults
from mtrl_cli.testing.policy_server import ScriptedPolicyServer
from tests.cli.test_doctor import KEY, Player, at, doctor
from tests.cli.world import World

LIES = {
    "a bill": faults.status(402, {"detail": "pay"}, retry_after=0),
    "a storm": faults.status(429, {"detail": "slow down"}, retry_after=0),
    "nonsense": faults.body('{"request_id": [[[[1]]]], "sequences": 5}'),
    "a result of another call": faults.body({"type": "sample", "sequences": [], "path": "x"}),
    "a failure": faults.fail("out of\nmemory \x1b[2J", "server"),
    "a page": faults.status(502, "<html><title>Bad <b>gateway</title>" + "<p>" * 9999),
}
PHASES = {
    "create_session": "a bill",
    "get_server_capabilities": "a page",
    "asample": "a storm",
    "create_model": "nonsense",
    "forward_backward": "a failure",
    "retrieve_future": "a result of another call",
}


@pytest.mark.long
@pytest.mark.parametrize("phase", PHASES)
def test_a_lie_in_each_phase(tmp_path, phase: str) -> None:
    world = World(tmp_path)
    with ScriptedPolicyServer(sampler=Player(), api_key="k-123456") as server:
        server.faults.add(phase, LIES[PHASES[phase]], times=-1)
        found = doctor(world, *at(server), **KEY)
        if phase == "create_model":  # its name never comes: only its session's end can free it
            assert "may have been executed" in found.text
        else:
            assert not server.models
    assert found.code == 1, found.text
    assert found.failed
    assert "Traceback" not in found.text
    assert "internal error" not in found.text
    for check in found.facts["checks"]:
        assert "\n" not in check["says"]
        assert "\x1b" not in check["says"]
        assert len(check["says"]) < 1000
