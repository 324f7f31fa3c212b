"""Servers that lie about a training call are found out before the lie becomes a commit.

The embedded server behind a proxy that changes what the client is told, or what the server is.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mtrl_cli.config.compose import compose
from mtrl_cli.config.resolve import resolve
from mtrl_cli.rollout.events import Observer, ignore
from mtrl_cli.runs.commits import read_history
from mtrl_cli.runs.stop import StopRequest
from mtrl_cli.training.events import Notice
from mtrl_cli.training.operations import TrainingError
from mtrl_cli.training.run import resume
from mtrl_cli.training.step.audit import AuditError
from tests.training.test_audit_lies import folder, lines, lying, run


def steps_committed(run: Path) -> int:
    last = read_history(run / "commits.jsonl").last
    return -1 if last is None else last.step


class OldName:
    """From the second snapshot on, the server gives the first one's name again."""

    def __init__(self) -> None:
        self.first: str | None = None

    def reply(self, endpoint: str, body: dict[str, Any]) -> dict[str, Any]:
        path = body.get("path")
        if isinstance(path, str) and "/sampler_weights/" in path:
            self.first = self.first or path
            body["path"] = self.first
        return body


async def test_a_publish_that_returns_an_older_name_is_not_committed(tmp_path: Path) -> None:
    lie = OldName()
    async with lying(tmp_path / "store", reply=lie.reply) as (proxy, server):
        with pytest.raises(TrainingError, match="stands for an older policy of this run"):
            await run(tmp_path, *server)
        assert proxy.seen.count("optim_step") == 1
        assert "unload_model" in proxy.seen
        # The resume knows the name from the commits of the attempt before.
        with pytest.raises(TrainingError, match="stands for an older policy of this run"):
            await again(tmp_path, *server)
    # Without a state it was to begin anew; as it could not, what was committed stands.
    assert steps_committed(folder(tmp_path)) == 0


def of_metrics(**wrong: float) -> Any:
    def reply(endpoint: str, body: dict[str, Any]) -> dict[str, Any]:
        if "metrics" in body and "loss_fn_outputs" not in body:
            body["metrics"] |= wrong
        return body

    return reply


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
async def test_a_step_whose_gradient_is_no_number_is_not_committed(
    tmp_path: Path, value: float
) -> None:
    async with lying(tmp_path / "store", reply=of_metrics(grad_norm=value)) as (proxy, server):
        with pytest.raises(TrainingError) as error:
            await run(tmp_path, *server)
        assert proxy.seen.count("optim_step") == 1
    assert str(error.value) == (
        f"the server's grad_norm of the optimizer step is {value}: its weights are not usable and "
        "the step is not committed; what is committed stands"
    )
    assert steps_committed(folder(tmp_path)) == 0


async def test_a_figure_that_was_not_measured_stops_nothing(tmp_path: Path) -> None:
    reply = of_metrics(gpu_seconds=float("nan"))
    async with lying(tmp_path / "store", reply=reply) as (_, server):
        made = await run(tmp_path, *server)
    steps = lines(made, "metrics.jsonl")
    assert len(steps) == 3
    assert all("server/gpu_seconds" not in step and "server/grad_norm" in step for step in steps)


def no_logprob(endpoint: str, body: dict[str, Any]) -> dict[str, Any]:
    for output in body.get("loss_fn_outputs", ()):
        output["logprobs"]["data"] = [float("nan") for _ in output["logprobs"]["data"]]
    return body


async def test_a_trainer_without_logprobs_is_not_stepped_also_where_nothing_is_audited(
    tmp_path: Path,
) -> None:
    """The first step is always audited, so the lie begins after it."""
    stepped = False

    def request(endpoint: str, body: dict[str, Any]) -> dict[str, Any]:
        nonlocal stepped
        stepped |= endpoint == "optim_step"
        return body

    def reply(endpoint: str, body: dict[str, Any]) -> dict[str, Any]:
        return no_logprob(endpoint, body) if stepped else body

    async with lying(tmp_path / "store", request=request, reply=reply) as (proxy, server):
        with pytest.raises(TrainingError, match="logprob of a trained token is not finite"):
            await run(tmp_path, *server, "audit.every=0", "server.codec=json")
        assert proxy.seen.count("optim_step") == 1
    assert steps_committed(folder(tmp_path)) == 1


# --- a resume -------------------------------------------------------------------------------


async def again(runs: Path, *overrides: str, observer: Observer = ignore) -> None:
    """Resume the run of `run`."""
    made = folder(runs)
    composed = compose(str(made / "config.yaml"), list(overrides))
    await resume(made, resolve(composed), observer=observer, stop=StopRequest())


class OtherState:
    """Loads the first state that was saved, whichever is asked for."""

    def __init__(self) -> None:
        self.first: str | None = None

    def request(self, endpoint: str, body: dict[str, Any]) -> dict[str, Any]:
        if endpoint == "load_weights":
            assert self.first is not None
            assert body["path"] != self.first
            body["path"] = self.first
        return body

    def reply(self, endpoint: str, body: dict[str, Any]) -> dict[str, Any]:
        path = body.get("path")
        if isinstance(path, str) and re.search(r"[0-9a-z]/weights/", path):
            self.first = self.first or path
        return body


THREE = ("train.checkpoint_every=1", "train.learning_rate=5e-3")


async def test_a_state_that_is_not_the_committed_policy_stops_the_resume(tmp_path: Path) -> None:
    """States 1, 2 and 3 are saved; the resume asks for the third and gets the first."""
    lie = OtherState()
    async with lying(tmp_path / "store", request=lie.request, reply=lie.reply) as (proxy, server):
        await run(tmp_path, *server, *THREE)
        steps = proxy.seen.count("optim_step")
        with pytest.raises(AuditError) as error:
            await again(tmp_path, *server, "train.steps=5")
        assert proxy.seen.count("optim_step") == steps
    assert "the state that was loaded is not the policy that was committed: " in str(error.value)
    assert steps_committed(folder(tmp_path)) == 3


@pytest.mark.parametrize("lag", [0, 1])
async def test_a_state_that_is_the_committed_policy_passes(tmp_path: Path, lag: int) -> None:
    async with lying(tmp_path / "store") as (_, server):
        await run(tmp_path, *server, *THREE, f"train.max_policy_lag={lag}")
        await again(tmp_path, *server, "train.steps=4")
    step = lines(folder(tmp_path), "metrics.jsonl")[-1]
    assert (step["step"], step["attempt"]) == (4, 2)
    assert 0 < step["parity_max"] < 1e-4


async def test_a_committed_policy_that_was_deleted_is_told_and_stops_nothing(
    tmp_path: Path,
) -> None:
    told: list[str] = []

    def observe(event: object) -> None:
        if isinstance(event, Notice):
            told.append(event.text)

    async with lying(tmp_path / "store") as (_, server):
        made = await run(tmp_path, *server, *THREE)
        last = json.loads((made / "run.json").read_text())["policy"]
        [snapshot] = (tmp_path / "store").rglob(f"sampler_weights/*{last.rpartition('/')[2]}.npz")
        snapshot.unlink()
        await again(tmp_path, *server, "train.steps=4", observer=observe)
    assert steps_committed(made) == 4
    [text] = [line for line in told if line.startswith("audit")]
    assert "whether the loaded state is the policy that was committed was not checked" in text
