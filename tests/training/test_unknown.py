"""Calls whose outcome is not known: what is told, what stands, and that a late effect of one
never reaches the resumed model."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from mtrl_cli.display.text import run_tail
from mtrl_cli.errors import MtrlError
from mtrl_cli.rollout.events import ignore
from mtrl_cli.runs.ledger import read_ledger
from mtrl_cli.runs.stop import StopRequest
from mtrl_cli.testing import faults
from mtrl_cli.testing.policy_server import ScriptedPolicyServer
from mtrl_cli.training.events import RunFailed, StepFinished
from mtrl_cli.training.run import resume, train
from tests.cli.processes import mtrl
from tests.runs.dead import dead_run
from tests.runs.live import TINY, Train, read_state
from tests.training.runs import experiment
from tests.training.test_end_to_end import Player
from tests.training.test_resume import broken_at, folder_of, go_on, made, stands

KEY = "server.api_key=${oc.env:TINKER_API_KEY}"
KEYS = {"TINKER_API_KEY": "none-needed"}


def outcomes(folder: Path, kind: str) -> list[str]:
    entries = read_ledger(folder / "ledger.jsonl")
    return [entry.state for entry in entries if entry.facts.get("kind") == kind]


async def test_a_late_effect_of_an_unknown_call_does_not_reach_the_resumed_model(
    tmp_path: Path,
) -> None:
    """The step of the first attempt is executed while the second one trains."""
    gate = faults.Gate()
    async with ScriptedPolicyServer(sampler=Player(), dedupes=False) as server:

        def hold_the_second_step() -> None:
            server.faults.add("optim_step", faults.outlive(gate), skip=1)
            # The old model stays loaded, or a late step would find nothing to act on.
            server.faults.add("unload_model", faults.drop_request(), times=2)

        folder, declared = await broken_at(
            server,
            tmp_path,
            hold_the_second_step,
            "train.steps=3",
            "train.checkpoint_every=1",
            "server.training_timeout=1.5",
        )
        assert outcomes(folder, "optim_step") == ["done", "unknown"]
        [old] = server.models
        assert server.models[old].steps == 1

        def open_after_the_second_step(event: object) -> None:
            if isinstance(event, StepFinished) and event.step == 2:
                gate.open()

        finished = await go_on(folder, declared, open_after_the_second_step)
        for _ in range(100):
            if server.models[old].steps == 2:
                break
            await asyncio.sleep(0.02)
        stepped = [call.model for call in server.applications() if call.kind == "optim_step"]
        assert server.models[old].steps == 2  # it came, late
        assert finished.policy is not None
        assert server.snapshots[finished.policy] == 3
    # One step of the first attempt, two of the second, and the late one on the old model.
    assert sorted(model == old for model in stepped) == [False, False, True, True]
    assert finished.status == "finished"
    assert any(old in left for left in finished.quarantined)
    assert [step for step, _, _ in stands(folder)] == [0, 1, 2, 3]


async def test_a_lost_reply_to_a_save_is_looked_up_by_its_name(tmp_path: Path) -> None:
    async with ScriptedPolicyServer(sampler=Player(), dedupes=False) as server:
        server.faults.add("save_weights_for_sampler", faults.drop_reply(), skip=1)
        server.faults.add("save_weights", faults.drop_reply())
        declared, yaml = made(server, tmp_path, "train.steps=2", "train.checkpoint_every=1")
        run = await train(declared, yaml, observer=ignore, stop=StopRequest())
        saves = [call.kind for call in server.applications() if call.kind.startswith("save")]
    folder = folder_of(tmp_path)
    assert run.status == "finished"
    assert set(outcomes(folder, "publish") + outcomes(folder, "save_state")) == {"done"}
    assert len(saves) == len(outcomes(folder, "publish") + outcomes(folder, "save_state"))
    assert stands(folder)[-1] == (2, 1, True)


async def test_a_save_that_was_not_executed_stays_unknown(tmp_path: Path) -> None:
    async with ScriptedPolicyServer(sampler=Player(), dedupes=False) as server:
        folder, _ = await broken_at(
            server,
            tmp_path,
            lambda: server.faults.add("save_weights", faults.drop_request()),
            "train.steps=2",
            "train.checkpoint_every=1",
        )
        assert len(server.requests("save_weights")) == 1
    assert outcomes(folder, "save_state") == ["unknown"]


def test_what_is_told_of_an_unknown_outcome(tmp_path: Path) -> None:
    with ScriptedPolicyServer(sampler=Player(), dedupes=False) as server:
        server.faults.add("optim_step", faults.drop_reply(), skip=1)
        _, yaml = experiment(
            f'server.base_url="{server.url}"', "train.kl=0.1", "train.steps=4", "group.per_step=2"
        )
        config = tmp_path / "experiment.yaml"
        config.write_text(yaml)
        asked = (f"conf={config}", "train.checkpoint_every=1", KEY)
        ended = mtrl("train", *asked, cwd=tmp_path, **KEYS)
    [folder] = [path for path in (tmp_path / "runs").iterdir() if not path.is_symlink()]
    told = ended.stderr.splitlines()
    assert ended.returncode == 1
    assert "optim_step" in told[0]
    assert "may have been executed" in told[0]
    assert "it was not sent again" in told[0]
    assert [line.split(maxsplit=1) for line in told[1:]] == [
        ["run:", f"runs/{folder.name}"],
        ["kept:", "step 1 is committed, with its training state"],
        # Of such a server it is not known whether it hands the gradients on: without --force a
        # resume would be refused.
        ["first:", "gradients of model_1 were not stepped: start the server again, then:"],
        ["resume:", f"mtrl train --resume {run_tail(folder.name)} --force"],
    ]


@pytest.mark.parametrize("known", [True, False])
async def test_what_a_dead_run_left_accepted_is_asked_for_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    monkeypatch.setenv("TINKER_API_KEY", KEYS["TINKER_API_KEY"])
    async with ScriptedPolicyServer(sampler=Player()) as server:
        declared, yaml = made(server, tmp_path, "train.steps=1", KEY)
        await train(declared, yaml, observer=ignore, stop=StopRequest())
        finished = folder_of(tmp_path)
        requests = [
            entry.facts["request"]
            for entry in read_ledger(finished / "ledger.jsonl")
            if entry.facts.get("kind") == "optim_step"
        ]
        [request] = requests
        place = f"Tinker API at {server.url}"
        session = {"kind": "server_session", "place": place, "id": "s"}
        asked = request if known else "unheard-of"
        call = ("call", "a1/optim_step/3")
        folder = dead_run(
            tmp_path / "dead",
            [
                ("borrow", "a1/run/server_session-1", "held", session),
                (*call, "intent", {"kind": "optim_step", "model": "m", "seq": 3}),
                (*call, "accepted", {"request": asked}),
            ],
            yaml,
        )
        sent = len(server.requests("optim_step"))
        ended = await asyncio.to_thread(
            mtrl, "cancel", "last", "--runs-dir", str(folder.parent), cwd=tmp_path, **KEYS
        )
        assert ended.returncode == 0, ended.stderr
        assert len(server.requests("optim_step")) == sent
    assert outcomes(folder, "optim_step") == ["done" if known else "unknown"]


def test_an_embedded_server_that_is_killed_ends_its_run_at_once_and_by_name(
    tmp_path: Path,
) -> None:
    options = (*TINY, f"server.store={tmp_path / 'store'}", "group.size=8", "group.per_step=8")
    with Train(tmp_path, options) as run:
        run.until(lambda: run.state().get("step", 0) >= 2)
        began = time.monotonic()
        os.kill(run.server()["pid"], signal.SIGKILL)
        assert run.process.wait(30) == 1
        assert time.monotonic() - began < 15  # on a loaded machine; alone it is 2
    said = run.said()
    log = f"runs/{run.id}/server.log"
    assert f"error: the embedded server is gone: its process ended (signal 9); see {log}" in said
    assert f"mtrl train --resume {run_tail(run.id)}" in said
    assert "QUARANTINE" not in said
    state = read_state(run.folder)
    assert state["borrows"] == {"held": 0, "quarantined": []}
    assert outcomes(run.folder, "unload_model") == []


async def test_a_failed_run_names_what_it_could_not_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINKER_API_KEY", KEYS["TINKER_API_KEY"])
    failed: list[RunFailed] = []

    def observe(event: object) -> None:
        if isinstance(event, RunFailed):
            failed.append(event)

    async with ScriptedPolicyServer(sampler=Player(), dedupes=False) as server:
        server.faults.add("optim_step", faults.drop_reply())
        server.faults.add("unload_model", faults.drop_request())
        declared, yaml = made(server, tmp_path, "train.steps=2", KEY)
        with pytest.raises(MtrlError, match="optim_step"):
            await train(declared, yaml, observer=observe, stop=StopRequest())
        [model] = server.models
        [one] = failed
        assert [model in left for left in one.quarantined] == [True]

        # The next attempt returns it.
        finished = await resume(folder_of(tmp_path), declared, observer=ignore, stop=StopRequest())
        assert server.models == {}
    assert finished.quarantined == ()
