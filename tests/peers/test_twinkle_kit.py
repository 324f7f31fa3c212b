"""mtrl against a real twinkle-kit 0.5.1 with its mock backends, and against its real losses.

Needs an environment of its own (2.1 GB), 4 GB of memory, and a minute or two to start Ray:

    python -m venv ~/.venvs/twinkle
    ~/.venvs/twinkle/bin/pip install torch==2.13.0
    echo torch==2.13.0 > constraints.txt
    ~/.venvs/twinkle/bin/pip install -c constraints.txt 'twinkle-kit[server]==0.5.1' \
        'ray[serve]' tinker==0.16.1 'httpx>=0.25' 'openai>=1'

MTRL_TWINKLE_PYTHON names its interpreter when it is elsewhere. Ray opens ports on all interfaces;
to keep them in: ``unshare -rn sh -c 'ip link set lo up && pytest -m peer tests/peers/…'``.

The mock backends ignore prompts, weights and labels, sample the same tokens every time, cut them
at their length, and return logprobs that have nothing to do with each other. With them the
transport, the shapes and the life of adapters are shown. What is trained is shown without Ray: by
the loss classes, and by the transformers backend on a tiny random model.
"""

import asyncio
import json
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from mtrl_cli.errors import MtrlError
from mtrl_cli.rollout.tokens import TokenSequence
from mtrl_cli.servers.errors import ServerError
from mtrl_cli.servers.interface import AdamSpec, Datum, LossSpec, ModelSpec
from mtrl_cli.servers.twinkle.codec import forward_backward_body
from mtrl_cli.servers.twinkle.errors import AdapterLost
from mtrl_cli.servers.twinkle.losses import twinkle_loss
from mtrl_cli.servers.twinkle.service import TwinkleService
from mtrl_cli.servers.twinkle.transport import TwinkleAddress
from mtrl_cli.testing.twinkle_server import ScriptedTwinkleServer
from tests.peers.twinkle_kit import PYTHON, serving
from tests.servers.twinkle_kit import Trained, connected, trained_datum, turn
from tests.settlement import audit
from tests.settlement.process import Running
from tests.settlement.test_tenants import Tenant, stop_twice

pytestmark = [
    pytest.mark.peer,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not PYTHON.exists(), reason=f"no twinkle-kit at {PYTHON}"),
]

LOSS = LossSpec("ppo", {})
ADAM = AdamSpec(0.001, 0.9, 0.95, 1e-8, 0.0, 1.0)
SPEC = ModelSpec("mock-model", 8, 32.0, 0, LOSS, ADAM)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("twinkle")) as address:
        asyncio.run(warmed(address))
        yield address


async def warmed(url: str) -> None:
    """The first request to a replica takes longer than a client waits, on a busy machine."""
    for last in (False, False, False, False, True):
        client = TwinkleService(TwinkleAddress.of(url, "first"), "mock-model")
        try:
            await client.connect()
        except ServerError:
            if last:
                raise
        else:
            return
        finally:
            await client.close()


def used(url: str) -> int:
    """The slots that are taken, on the server's own count."""
    headers = {"Authorization": "Bearer EMPTY_TOKEN", "X-Request-ID": "count"}
    reply = httpx.get(f"{url}/api/v1/twinkle/capacity_info", headers=headers, timeout=30)
    return int(reply.json()["used_loras"])


async def test_every_call(url: str) -> None:
    client = TwinkleService(TwinkleAddress.of(url, "mine"), "mock-model")
    await client.connect()
    try:
        run, accepted = client.execute, []
        model = await run(client.create_model(SPEC), accepted.append)
        assert model == f"{client.session}-mtrl1"
        assert used(url) == 1

        first = await run(client.publish(model, 1, "run/a1/step-000000"), accepted.append)
        assert first.startswith(f"twinkle://{model}/sampler_weights/")
        samples = await asyncio.gather(
            *(client.sample(turn(first, tokens=[1, 2, 3 + i], max_tokens=4)) for i in range(6))
        )
        for i, sample in enumerate(samples):
            tokens = TokenSequence([1, 2, 3 + i])
            tokens.append_sampled(sample, first)  # aligned, finite, and the context that was sent
            assert sample.stop_reason == "length"
            assert len(tokens) == 7

        data = [trained_datum([1, 2, 3, 15, 9, 30], [3, 4, 5], 0.5) for _ in range(3)]
        result = await run(client.forward_backward(model, 2, data, LOSS), accepted.append)
        assert np.isfinite(result.loss)
        assert [len(row) for row in result.logprobs] == [5, 5, 5]
        metrics = await run(client.optim_step(model, 3, ADAM), accepted.append)
        assert metrics == {"loss": 0.5, "grad_norm": 0.1}
        second = await run(client.publish(model, 4, "run/a1/step-000001"), accepted.append)
        assert second != first
        state = await run(client.save_state(model, 5, "run/a1/step-000001"), accepted.append)
        assert state == f"twinkle://{model}/weights/run_a1_step-000001"

        again = await run(client.create_model(SPEC), accepted.append)
        assert used(url) == 2
        await run(client.load_state(again, 1, state), accepted.append)
        for name in (model, again):
            await run(client.unload_model(name), accepted.append)
        assert used(url) == 0
        with pytest.raises(AdapterLost) as lost:
            await run(client.forward_backward(model, 6, data, LOSS), accepted.append)
        assert "\n" not in str(lost.value)
        assert len(str(lost.value)) < 500
    finally:
        await client.close()


async def test_what_the_server_refuses_is_one_line(url: str) -> None:
    client = TwinkleService(TwinkleAddress.of(url, "mine"), "mock-model")
    await client.connect()
    try:
        big = turn(await client.base_policy(), tokens=[1] * 16_001)
        with pytest.raises(Exception, match=r"Input tokens \(16001\) exceed maximum allowed"):
            await client.sample(big)
    finally:
        await client.close()
    with pytest.raises(MtrlError, match=r"'other' is not served by .*served: mock-model"):
        await TwinkleService(TwinkleAddress.of(url, "mine"), "other").check()


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWINKLE_API_KEY", "tenant")


class Peer(Tenant):
    """A run of `UnevenTask` on the real server."""

    def __init__(self, home: Path, name: str, url: str) -> None:
        super().__init__(
            home, name, "conf=blackjack_twinkle", f'server.base_url="{url}"',
            "server.base_model=mock-model", "server.tokenizer=mtrl-tiny",
            f"task.entrypoint={Path(__file__).with_name('uneven_task.py')}:UnevenTask",
            "group.per_step=2", "budget.turn_tokens=8",
            "audit.stop_max=0", "audit.stop_mean=0",
        )  # fmt: skip

    def mtrl(self, *arguments: str) -> Running:
        return Running(*arguments, cwd=self.cwd, environ=self.world.environ())


def test_a_run_is_drained_and_resumed(url: str, tmp_path: Path) -> None:
    one = Peer(tmp_path, "one", url)
    with one.training("train.steps=50", "train.checkpoint_every=25") as run:
        run.wait(lambda: one.commits() > 2, "its second step", 120)
        assert used(url) == 1
        run.send(signal.SIGINT)
        assert run.code(120) == 130, run.out + run.err
    assert used(url) == 0
    stood = audit.committed(one.folder)
    policies = [commit["policy"] for commit in audit.records(one.folder, "commits.jsonl")]
    assert len(set(policies)) == stood + 1
    again = one.mtrl("train", "--resume", "last", f"train.steps={stood + 2}", "--force")
    assert again.code(120) == 0, again.out + again.err
    assert audit.committed(one.folder) == stood + 2
    assert used(url) == 0
    print(f"drained after step {stood}, resumed to step {stood + 2}; {again.out.splitlines()[-4:]}")


def test_the_audit_stops_a_run_whose_trainer_does_not_agree_with_its_sampler(
    url: str, tmp_path: Path
) -> None:
    """As the mock backends do not."""
    one = Peer(tmp_path, "one", url)
    with one.training("audit.stop_mean=0.1") as run:
        assert run.code(120) == 1
        assert audit.committed(one.folder) == 0
    assert used(url) == 0


def test_a_killed_runs_slot_is_freed_by_cancel(url: str, tmp_path: Path) -> None:
    one = Peer(tmp_path, "one", url)
    with one.training("train.steps=50") as run:
        run.wait(lambda: one.commits() > 1, "its first step", 120)
        run.send(signal.SIGKILL)
        run.process.wait(10)
    assert used(url) == 1
    cancel = one.mtrl("cancel", "last")
    assert cancel.code(60) == 0, cancel.out + cancel.err
    assert used(url) == 0


def test_stopping_one_tenant_leaves_the_other_unharmed(url: str, tmp_path: Path) -> None:
    staying, leaving = Peer(tmp_path, "a", url), Peer(tmp_path, "b", url)
    with staying.training("train.steps=8") as run, leaving.training("train.steps=50") as other:
        other.wait(lambda: leaving.commits() > 1, "its first step", 120)
        run.wait(lambda: staying.commits() > 0, "its policy", 120)
        stop_twice(other, leaving)
        assert used(url) <= 1
        assert run.code(180) == 0, run.out + run.err
    assert audit.committed(staying.folder) == 8
    assert used(url) == 0


# --- the real losses ---------------------------------------------------------------------------

LOSSES = r"""
import json, sys
import torch
from twinkle import loss as losses

answers = []
for body in json.load(sys.stdin):
    width = max(len(item["input_ids"]) for item in body["inputs"])
    labels = torch.full((len(body["inputs"]), width), -100)
    for row, item in enumerate(body["inputs"]):
        labels[row, : len(item["labels"])] = torch.tensor(item["labels"])
    logps = torch.tensor(body["new"], dtype=torch.float64, requires_grad=True)
    made = getattr(losses, body["loss"])(**body["parameters"])
    value = made(
        {"labels": labels}, {"logps": logps},
        old_logps=body["old_logps"], advantages=body["advantages"],
    )["loss"]
    value.backward()
    answers.append({"loss": value.item(), "gradient": logps.grad.tolist()})
json.dump(answers, sys.stdout)
"""


def test_the_servers_own_loss_classes_sum_what_was_sent() -> None:
    """The request's body through twinkle.loss: the derivative of mtrl's sum by every logprob."""
    random = np.random.default_rng(7)
    names = ["importance_sampling", "ppo", "gspo", "sapo", "cispo"]
    cases = [_case(name, uniform, random) for name in names for uniform in (True, False)]
    run = subprocess.run(
        [PYTHON, "-c", LOSSES], input=json.dumps([told for _, _, told in cases]),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    for (name, data, told), answer in zip(cases, json.loads(run.stdout), strict=True):
        gradient, new = np.array(answer["gradient"]), np.array(told["new"])
        total, expected = 0.0, np.zeros_like(gradient)
        for row, datum in enumerate(data):
            mask = datum.advantages != 0
            weights = datum.advantages[mask].astype(np.float64)
            now = new[row, : len(mask)][mask]
            value, slope = objective(name, now - datum.logprobs[mask], weights, now)
            total += value
            expected[row, : len(mask)][mask] = slope
        assert answer["loss"] == pytest.approx(total, rel=1e-5), name
        assert gradient == pytest.approx(expected, rel=1e-5, abs=1e-9), name


def _case(name: str, uniform: bool, random: Any) -> tuple[str, list[Datum], dict[str, Any]]:
    """Three sequences of different lengths, as they are sent, and the trainer's new logprobs."""
    loss = LossSpec(name, {})
    places = [[3, 4, 8, 9], [2], [1, 2, 3, 4, 5]]
    data = []
    for sampled, length, advantage in zip(places, (10, 3, 7), (0.4, -0.7, 0.2), strict=True):
        datum = trained_datum([*range(50, 50 + length)], sampled, advantage)
        if not uniform:
            mask = datum.advantages != 0
            datum.advantages[mask] += random.normal(0, 0.1, mask.sum()).astype(np.float32)
        data.append(datum)
    new = random.uniform(-3, 0, (3, 10))
    for row, datum in enumerate(data):
        mask = datum.advantages != 0
        near = datum.logprobs[mask] + random.uniform(-0.4, 0.4, mask.sum())
        new[row, : len(mask)][mask] = near
    made = twinkle_loss(loss)
    body = json.loads(forward_backward_body("a", data, loss, "transformers"))
    parameters = dict(made.parameters)
    return name, data, {**body, "new": new.tolist(), "loss": made.name, "parameters": parameters}


def objective(name: str, gap: Any, weights: Any, new: Any) -> tuple[float, Any]:
    """The summed loss of a sequence, and its derivative by every logprob."""
    ratio = np.exp(np.full_like(gap, gap.mean()) if name == "gspo" else gap)
    if name == "cispo":
        bounded = np.minimum(ratio, 1.2)
        return float(-(bounded * weights * new).sum()), -bounded * weights
    if name == "sapo":
        gate = 1 / (1 + np.exp(-(ratio - 1)))
        return float(-(4 * gate * weights).sum()), -4 * gate * (1 - gate) * ratio * weights
    if name == "importance_sampling":
        return float(-(ratio * weights).sum()), -ratio * weights
    clipped = np.clip(ratio, 0.8, 1.2)
    plain, bounded = ratio * weights, clipped * weights
    slope = np.where((plain <= bounded) | (clipped == ratio), -plain, 0)
    if name == "gspo":
        slope = np.full_like(slope, slope.sum() / len(slope))
    return float(-np.minimum(plain, bounded).sum()), slope


# --- the real transformers backend -------------------------------------------------------------


async def test_the_transformers_backend_trains_what_was_meant(tmp_path: Path) -> None:
    """The requests of a session, handed to the real model: losses, logprobs and gradients are
    those of the sampled tokens alone, with padding, tempered logprobs and PPO's bounds."""
    places = [[3, 4, 8, 9], [2], [1, 2, 3, 4, 5]]
    data = [
        trained_datum([*range(20, 20 + length)], sampled, advantage)
        for sampled, length, advantage in zip(places, (12, 3, 7), (0.4, -0.7, 0.2), strict=True)
    ]
    for datum in data:  # near those of a random model, so that some ratios are bounded
        mask = datum.advantages != 0
        datum.logprobs[mask] += np.float32(-6.2)
    told: dict[str, Any] = {
        "folder": str(tmp_path / "model"),
        "tokenizer": str(files("mtrl_cli") / "assets" / "mtrl-tiny" / "tokenizer.json"),
    }
    loss = LossSpec("ppo", {}, temperature=0.8)
    decayed = replace(ADAM, learning_rate=0.02, weight_decay=0.1, grad_clip_norm=0.0)
    slower = replace(decayed, learning_rate=0.005)
    async with ScriptedTwinkleServer() as server, connected(server) as client:
        trained = await Trained.on(client, loss=loss, adam=decayed)
        for adam in (decayed, slower, slower):
            await trained.train(*data, loss=loss)
            await trained.step(adam)
        prefix = "model/scripted/twinkle/"
        told["requests"] = [
            (request.endpoint.removeprefix(prefix), request.body)
            for request in server.requests()
            if request.endpoint.startswith(prefix)
            and not request.endpoint.endswith(("/create", "/calculate_metric"))
        ]
    arrays = ("tokens", "targets", "logprobs", "advantages")
    batch = [{name: getattr(datum, name).tolist() for name in arrays} for datum in data]
    told["batches"] = [{"data": batch, "temperature": 0.8, "loss": "ppo"}] * 3
    script = Path(__file__).with_name("twinkle_backend.py")
    run = await asyncio.to_thread(
        subprocess.run, ["nice", "-n", "5", PYTHON, script], input=json.dumps(told),
        capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    steps = json.loads(run.stdout.splitlines()[-1])
    assert len(steps) == 3
    for step in steps:
        assert step["loss"] == pytest.approx(step["meant"], rel=1e-5)
        assert step["gap"] < 1e-5 * step["size"]
        for row, own, datum in zip(step["logps"], step["logprobs"], data, strict=True):
            mask = np.flatnonzero(datum.advantages)
            assert np.array(row)[mask] == pytest.approx(np.array(own)[mask], abs=1e-5)
        assert step["optimizer"] == "AdamW"
    assert steps[0]["meant"] != pytest.approx(steps[2]["meant"])  # it has learnt something
    rates = [group[0] for step in steps for group in step["groups"]]
    assert rates == [0.02, 0.005, 0.005]
    assert steps[1]["groups"][0][1:] == [[0.9, 0.95], 1e-8, 0.1]
