"""A server whose samples are not the policy's is caught before the first step on them is taken.

The embedded server, with real weights and real logprobs, behind a proxy that changes what the
client is told.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from mtrl_cli.config.compose import compose
from mtrl_cli.config.resolve import resolve
from mtrl_cli.rollout.events import Observer, ignore
from mtrl_cli.runs.stop import StopRequest
from mtrl_cli.servers.launch import EmbeddedServer
from mtrl_cli.training.events import Notice
from mtrl_cli.training.run import train
from mtrl_cli.training.step.audit import BFLOAT16, AuditError
from tests.training.rewriting_proxy import Rewrite, RewritingProxy, unchanged

STEPS = 3


@asynccontextmanager
async def lying(
    store: Path, *, request: Rewrite = unchanged, reply: Rewrite = unchanged
) -> AsyncIterator[tuple[RewritingProxy, list[str]]]:
    async with (
        EmbeddedServer(store) as server,
        RewritingProxy(server.url, request=request, reply=reply) as proxy,
    ):
        where = f'server.base_url="{proxy.url}"'
        # What it rewrites is JSON.
        yield proxy, [where, f"server.api_key={server.api_key}", "server.codec=json"]


async def run(runs: Path, *overrides: str, observer: Observer = ignore) -> Path:
    """Train a few steps on the embedded model; the run's folder."""
    fixed = (
        "train.lora_rank=null", "train.kl=0", "train.learning_rate=1e-3", f"train.steps={STEPS}",
        "train.checkpoint_every=0", "group.size=4", "group.per_step=4", "eval.games=0",
    )  # fmt: skip
    composed = compose("blackjack", [*fixed, f'run.dir="{runs}"', *overrides])
    await train(resolve(composed), composed.yaml, observer=observer, stop=StopRequest())
    return folder(runs)


def folder(runs: Path) -> Path:
    return (runs / "latest").resolve()


def lines(run: Path, name: str) -> list[dict[str, Any]]:
    path = run / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def steps_committed(run: Path) -> int:
    return max(commit["step"] for commit in lines(run, "commits.jsonl"))


# --- lies -----------------------------------------------------------------------------------


def about_logprobs(change: Any) -> Rewrite:
    def reply(endpoint: str, body: dict[str, Any]) -> dict[str, Any]:
        for sequence in body.get("sequences", ()):
            sequence["logprobs"] = change(sequence["logprobs"])
        return body

    return reply


shifted = about_logprobs(lambda logprobs: [logprobs[-1], *logprobs[:-1]])
half_zero = about_logprobs(lambda logprobs: [0.0 if n % 2 else p for n, p in enumerate(logprobs)])


class FirstSnapshot:
    """Serves the samples, and the prompt logprobs, of the first snapshot for all later ones."""

    def __init__(self) -> None:
        self.first: str | None = None

    def request(self, endpoint: str, body: dict[str, Any]) -> dict[str, Any]:
        if endpoint == "create_sampling_session":
            self.first = self.first or body["model_path"]
            body["model_path"] = self.first
        return body

    def reply(self, endpoint: str, body: dict[str, Any]) -> dict[str, Any]:
        body.pop("weights", None)  # or it would say which weights it used
        return body


# --- what happens ---------------------------------------------------------------------------


@pytest.mark.parametrize("lag", [0, 1])
async def test_a_server_that_tells_the_truth_passes(tmp_path: Path, lag: int) -> None:
    async with lying(tmp_path / "store") as (_, server):
        made = await run(tmp_path, *server, f"train.max_policy_lag={lag}")
    metrics = lines(made, "metrics.jsonl")
    assert len(metrics) == STEPS
    for figures in metrics:
        assert 0 < figures["parity_max"] < 2e-5
        assert figures["parity_mean"] < 2e-6
        assert figures["audit/above"] == 0
        assert 0 < figures["audit/ratio_p1"] <= figures["audit/ratio_p50"] <= 1.001
        assert 0 < figures["audit/ess"] <= 1 + 1e-12
    # The importance ratio tells the lag: 1 where the trainer is the sampler, and only there.
    ratios = [figures["audit/ratio_max"] - 1 for figures in metrics]
    assert all(abs(ratio) < 1e-4 for ratio in ratios[: STEPS if lag == 0 else 1])
    assert lag == 0 or all(ratio > 1e-3 for ratio in ratios[1:])


ROUNDED = tuple(f"audit.{item.name}={getattr(BFLOAT16, item.name)}" for item in fields(BFLOAT16))
"""What a server in low precision is allowed."""


@pytest.mark.parametrize(
    ("lie", "cause"),
    [
        (shifted, "fits the one of the previous token"),
        (half_zero, "of the sampler's logprobs are exactly 0 where the others are not"),
    ],
    ids=["shifted", "half_zero"],
)
@pytest.mark.parametrize("allowed", [(), ROUNDED], ids=["float32", "bfloat16"])
async def test_logprobs_that_are_not_the_tokens_own_stop_the_first_step(
    tmp_path: Path, lie: Rewrite, cause: str, allowed: tuple[str, ...]
) -> None:
    async with lying(tmp_path / "store", reply=lie) as (proxy, server):
        with pytest.raises(AuditError) as error:
            await run(tmp_path, *server, *allowed)
        assert proxy.seen.count("forward_backward") == 1
        assert "optim_step" not in proxy.seen
        assert "unload_model" in proxy.seen  # and its gradients with it
    text = str(error.value)
    assert text.startswith("audit, step 1: the sampler's logprobs are not the trainer's: ")
    assert cause in text
    assert f"(stop above {0.1 if allowed else 0.001})" in text
    assert text.endswith("No optimizer step was sent for it; what is committed stands")
    made = folder(tmp_path)
    assert steps_committed(made) == 0
    status = json.loads((made / "run.json").read_text())
    assert (status["status"], status["reason"]) == ("failed", text)


@pytest.mark.parametrize("lag", [0, 1, 2])
async def test_samples_of_another_snapshot_stop_the_first_step_on_them(
    tmp_path: Path, lag: int
) -> None:
    lie = FirstSnapshot()
    async with lying(tmp_path / "store", request=lie.request, reply=lie.reply) as (proxy, server):
        with pytest.raises(AuditError, match="It usually means that the samples come from other"):
            await run(tmp_path, *server, f"train.max_policy_lag={lag}")
        assert proxy.seen.count("optim_step") == 1
    # Step 1 samples the first snapshot rightly; step 2 trains on what is called the second.
    assert steps_committed(folder(tmp_path)) == 1


class FromThen:
    """The truth until an optimizer step was sent."""

    def __init__(self, lie: Rewrite) -> None:
        self._lie = lie
        self._stepped = False

    def request(self, endpoint: str, body: dict[str, Any]) -> dict[str, Any]:
        self._stepped |= endpoint == "optim_step"
        return body

    def reply(self, endpoint: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._lie(endpoint, body) if self._stepped else body


async def test_at_a_lag_samples_are_held_against_their_own_policy(tmp_path: Path) -> None:
    lie = FromThen(half_zero)
    async with lying(tmp_path / "store", request=lie.request, reply=lie.reply) as (proxy, server):
        with pytest.raises(AuditError) as error:
            await run(tmp_path, *server, "train.max_policy_lag=1")
        taken = proxy.seen.count("optim_step")
    # Step 2 may still train on what was sampled before the lie; step 3 cannot.
    assert taken == steps_committed(folder(tmp_path)) <= 2
    assert ": logprobs that came with the samples are not those of the policy" in str(error.value)
    assert "of the sampler's logprobs are exactly 0" in str(error.value)


async def test_a_warning_is_told_once_and_stops_nothing(tmp_path: Path) -> None:
    told: list[str] = []

    def observe(event: object) -> None:
        if isinstance(event, Notice):
            told.append(event.text)

    half_a_percent = about_logprobs(lambda logprobs: [p - 0.005 for p in logprobs])
    allowed = ("audit.stop_max=0", "audit.stop_mean=0", "audit.limit=0.004")
    async with lying(tmp_path / "store", reply=half_a_percent) as (_, server):
        made = await run(tmp_path, *server, *allowed, observer=observe)
    assert len(lines(made, "metrics.jsonl")) == STEPS
    [text] = [line for line in told if line.startswith("audit")]
    assert text.startswith("audit, step 1: the sampler's logprobs are not the trainer's: ")
    assert "in the mean (warn above 1e-05)" in text
    for figures in lines(made, "metrics.jsonl"):
        assert figures["parity_mean"] == pytest.approx(0.005, rel=1e-2)
        assert figures["audit/above"] == 1
        assert figures["audit/kl_k1"] == pytest.approx(-0.005, rel=1e-2)
        assert figures["audit/kl_k3"] == pytest.approx(0.005**2 / 2, rel=1e-2)


async def test_only_the_first_step_is_audited_where_the_others_need_not_be(tmp_path: Path) -> None:
    async with lying(tmp_path / "store") as (_, server):
        made = await run(tmp_path, *server, "audit.every=0")
    audited = ["parity_max" in figures for figures in lines(made, "metrics.jsonl")]
    assert audited == [True, False, False]
