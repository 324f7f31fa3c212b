"""From the server's samples to the server's training call: nothing is invented on the way.

The real chat format, the real environment and the real HTTP client, against a server whose
samples are scripted, so that every id and every logprob is known beforehand.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from mtrl_cli.chat.tokenizer import load_tokenizer
from mtrl_cli.display.summary import failure
from mtrl_cli.errors import MtrlError
from mtrl_cli.runs.ledger import read_ledger
from mtrl_cli.runs.stop import Stage, StopRequest
from mtrl_cli.testing import faults
from mtrl_cli.testing.policy_server import ScriptedPolicyServer
from mtrl_cli.training.events import Notice, RunFailed, ServiceStrained
from mtrl_cli.training.run import train
from tests.training.runs import experiment, lines, train_on, trajectories

TOKENIZER = load_tokenizer("mtrl-tiny")
END = TOKENIZER.convert_tokens_to_ids("<|im_end|>")
ANSWERED = TOKENIZER.convert_tokens_to_ids("<tool_response>")


def call(action: str) -> list[int]:
    """A tool call that the tokenizer would not have encoded this way: `hit` letter by letter."""
    before = TOKENIZER.encode('<tool_call>\n{"name": "play", "arguments": {"action": "')
    word = [token for letter in action for token in TOKENIZER.encode(letter)]
    return [*before, *word, *TOKENIZER.encode('"}}\n</tool_call>'), END]


def halves(tokens: Sequence[int], policy: str) -> list[float | None]:
    """Another policy than the one that samples: its KL penalty is something to train on."""
    return [None] + [-0.5] * (len(tokens) - 1)


class Player:
    """Makes two bad calls, then stands: three turns whatever the cards.

    Keeps what it returned, by context; every position of every context has its own logprob.
    """

    def __init__(self) -> None:
        self.returned: dict[tuple[int, ...], tuple[list[int], list[float]]] = {}

    def __call__(self, tokens: Sequence[int], seed: int) -> tuple[list[int], list[float]]:
        turn = list(tokens).count(ANSWERED)
        ids = call("stand" if turn == 2 else "hit")
        if turn < 2:
            ids = [*ids[:-2], END]  # without the closing marker: a call that cannot be executed
        # Exact in float32, and a function of the context: members share their first one.
        logprobs = [-(len(tokens) + position) / 1024 for position, _ in enumerate(ids)]
        self.returned[tuple(tokens)] = (ids, logprobs)
        return ids, logprobs


async def test_three_turns_reach_the_training_call_exactly_as_they_were_sampled(
    tmp_path: Path,
) -> None:
    player = Player()
    async with ScriptedPolicyServer(sampler=player, prompt_logprobs=halves) as server:
        run = await train_on(server.url, tmp_path, "train.steps=1", "train.kl=0.25")
        [request] = server.requests("forward_backward")

    saved = {record["member"]: record for record in trajectories(run, 1)}
    data = request.body["forward_backward_input"]["data"]
    assert len(data) == len(saved) == 2
    for member, datum in enumerate(data):
        record = saved[member]
        tokens, spans = record["tokens"], record["spans"]
        assert [kind for kind, _, _ in spans] == [
            "prompt", "sampled", "bridge", "sampled", "bridge", "sampled",
        ]  # fmt: skip

        # The saved trajectory: ids and logprobs as the server returned them, found by context.
        expected: list[float | None] = [None] * len(tokens)
        logprobs = iter(record["logprobs"])
        for kind, start, end in spans:
            if kind == "sampled":
                ids, values = player.returned[tuple(tokens[:start])]
                assert tokens[start:end] == ids
                assert [next(logprobs) for _ in ids] == values
                expected[start:end] = values
        assert next(logprobs, None) is None

        # The training call: exactly these, shifted by one; zero wherever nothing was sampled.
        [chunk] = datum["model_input"]["chunks"]
        inputs = datum["loss_fn_inputs"]
        assert chunk["tokens"] == tokens[:-1]
        assert inputs["target_tokens"]["data"] == tokens[1:]
        sent = np.array(inputs["logprobs"]["data"], dtype=np.float32)  # the wire's type
        assert sent.tolist() == [value or 0.0 for value in expected[1:]]
        assert [value != 0 for value in inputs["advantages"]["data"]] == [
            value is not None for value in expected[1:]
        ]

        # Decoding and encoding again would have lost the ids that were sampled.
        start, end = spans[1][1:]
        assert TOKENIZER.encode(TOKENIZER.decode(tokens[start:end])) != tokens[start:end]


async def test_every_turn_of_a_group_is_sampled_under_the_groups_policy(tmp_path: Path) -> None:
    async with ScriptedPolicyServer(sampler=Player(), prompt_logprobs=halves) as server:
        run = await train_on(server.url, tmp_path, "train.steps=3", "train.kl=0.1")
        policies = {request.body["sampling_session_id"] for request in server.requests("asample")}
        created = [
            request.body["model_path"] for request in server.requests("create_sampling_session")
        ]
        assert server.models == {}  # the server-side model was given back
    steps = [commit["policy"] for commit in lines(run, "commits.jsonl")]
    assert len(policies) == len(set(created)) == 3
    assert run.policy == steps[-1]
    for step in (1, 2, 3):
        used = {record["policy"] for record in trajectories(run, step)}
        assert used == {created[step - 1]} == {steps[step - 1]}


async def test_the_ledger_tells_every_call_in_order(tmp_path: Path) -> None:
    async with ScriptedPolicyServer(sampler=Player(), prompt_logprobs=halves) as server:
        run = await train_on(server.url, tmp_path, "train.steps=2", "train.kl=0.1")
        applied = [call.kind for call in server.applications()]
    ledger = [line for line in lines(run, "ledger.jsonl") if line["entry"] == "call"]
    kinds = [line["kind"] for line in ledger if line["state"] == "intent"]
    assert kinds == [
        "create_model", "publish",
        "forward_backward", "optim_step", "publish",
        "forward_backward", "optim_step", "publish",
        "unload_model",
    ]  # fmt: skip
    assert len(applied) == len(kinds)
    by_key: dict[str, list[str]] = {}
    for line in ledger:
        by_key.setdefault(line["key"], []).append(line["state"])
    assert set(map(tuple, by_key.values())) == {("intent", "accepted", "done")}


async def test_a_lost_reply_to_an_optimizer_step_ends_the_run_and_is_never_repeated(
    tmp_path: Path,
) -> None:
    async with ScriptedPolicyServer(
        sampler=Player(), dedupes=False, prompt_logprobs=halves
    ) as server:
        server.faults.add("optim_step", faults.drop_reply())
        with pytest.raises(MtrlError, match="optim_step"):
            await train_on(server.url, tmp_path, "train.steps=2", "train.kl=0.1")
        assert server.applied("optim_step") == len(server.requests("optim_step")) == 1
    [folder] = [path for path in tmp_path.iterdir() if not path.is_symlink()]
    states = {entry.key: entry.state for entry in read_ledger(folder / "ledger.jsonl")}
    assert states["a1/optim_step/3"] == "unknown"
    [model] = [state for key, state in states.items() if "/server_model-" in key]
    assert model == "released"


async def test_an_empty_batch_sends_nothing_and_the_cursor_advances(tmp_path: Path) -> None:
    async with ScriptedPolicyServer(sampler=lambda tokens, seed: ([END], [-0.1])) as server:
        run = await train_on(server.url, tmp_path, "train.steps=3")
        assert server.requests("forward_backward") == []
        assert server.applied("optim_step") == 0
    commits = lines(run, "commits.jsonl")
    assert [list(commit["groups"]) for commit in commits] == [[], ["0"], ["1"], ["2"]]
    assert {outcome for c in commits for outcome in c["groups"].values()} == {"constant_reward"}
    assert run.skipped == {"constant_reward": 3}


async def test_what_calls_wait_for_and_how_many_were_made_again_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mtrl_cli.training.telling.straining._EVERY", 0.02)
    told: list[ServiceStrained] = []

    def observe(event: object) -> None:
        if isinstance(event, ServiceStrained):
            told.append(event)

    async with ScriptedPolicyServer(sampler=Player()) as server:
        slow = faults.status(429, {"detail": "slow down"}, retry_after=0.4)
        server.faults.add("asample", slow, times=2)
        await train_on(server.url, tmp_path, "train.steps=1", observer=observe)
    assert any("slow down" in (event.waits or "") for event in told)
    assert told[-1] == ServiceStrained(2, None)
    again = [event.reissued for event in told]
    assert again == sorted(again)


@pytest.mark.parametrize("endpoint", ["create_model", "forward_backward"])
async def test_a_drain_does_not_wait_for_a_server_that_lets_nobody_send_for_longer(
    tmp_path: Path, endpoint: str
) -> None:
    stop = StopRequest()
    told: list[str] = []

    def observe(event: object) -> None:
        if isinstance(event, Notice):
            told.append(event.text)

    async def drain_when_refused(server: ScriptedPolicyServer) -> None:
        while not server.requests(endpoint):
            await asyncio.sleep(0.01)
        stop.request(Stage.DRAIN, "Ctrl-C")

    async with ScriptedPolicyServer(sampler=Player(), prompt_logprobs=halves) as server:
        server.faults.add(endpoint, faults.status(429, {"detail": "slow down"}, retry_after=50))
        made, yaml = experiment(
            f'server.base_url="{server.url}"', f'run.dir="{tmp_path}"', "train.kl=0.25",
            "run.drain_timeout=40",
        )  # fmt: skip
        draining = asyncio.create_task(drain_when_refused(server))
        async with asyncio.timeout(30):
            run = await train(made, yaml, observer=observe, stop=stop)
        await draining
        assert server.applied(endpoint) == 0
        assert server.models == {}
    assert (run.status, run.reason, run.quarantined) == ("cancelled", "stopped by Ctrl-C", ())
    calls = [line for line in lines(run, "ledger.jsonl") if f"/{endpoint}" in line["key"]]
    assert [line["state"] for line in calls] == ["intent", "refused"]
    assert any("lets nothing be sent for" in text for text in told)


@pytest.mark.parametrize("endpoint", ["optim_step", "save_weights_for_sampler", "save_weights"])
async def test_a_drain_commits_what_was_begun_however_often_a_busy_server_refuses(
    tmp_path: Path, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mtrl_cli.servers.budget._LONGEST_PAUSE", 0.02)
    stop = StopRequest()

    async def drain_when_refused(server: ScriptedPolicyServer) -> None:
        while not server.requests("forward_backward"):
            await asyncio.sleep(0)
        before = len(server.requests(endpoint))
        server.faults.add(endpoint, faults.status(503, {"detail": "the queue is full"}), times=12)
        while len(server.requests(endpoint)) == before:
            await asyncio.sleep(0.001)
        stop.request(Stage.DRAIN, "Ctrl-C")

    async with ScriptedPolicyServer(sampler=Player(), prompt_logprobs=halves) as server:
        made, yaml = experiment(
            f'server.base_url="{server.url}"', f'run.dir="{tmp_path}"', "train.steps=50",
            "run.drain_timeout=60", "train.checkpoint_every=1",
        )  # fmt: skip
        draining = asyncio.create_task(drain_when_refused(server))
        async with asyncio.timeout(60):
            run = await train(made, yaml, observer=lambda event: None, stop=stop)
        draining.cancel()
        stepped = server.applied("optim_step")
    assert (run.status, run.quarantined) == ("cancelled", ())
    calls = [line for line in lines(run, "ledger.jsonl") if line["entry"] == "call"]
    assert {line["state"] for line in calls} == {"intent", "accepted", "done"}
    # A step whose groups have equal rewards is committed without a call.
    assert lines(run, "commits.jsonl")[-1]["step"] >= stepped >= 1


async def test_gradients_that_were_not_stepped_are_named_where_the_server_hands_them_on(
    tmp_path: Path,
) -> None:
    events: list[object] = []
    async with ScriptedPolicyServer(sampler=Player(), prompt_logprobs=halves) as server:
        server.faults.add("optim_step", faults.status(400, {"detail": "no"}), times=1)
        with pytest.raises(MtrlError, match="optim_step"):
            await train_on(
                server.url, tmp_path, "train.steps=1", "train.kl=0.25",
                "server.leaks_gradients=true", observer=events.append,
            )  # fmt: skip
        [gradients] = server.requests("forward_backward")
    [failed] = [event for event in events if isinstance(event, RunFailed)]
    assert failed.resumable is not None
    assert failed.resumable.unstepped == (gradients.body["model_id"],)
    told = {fact.label: fact.text for fact in failure(failed)}
    assert told["resume"].endswith(" --force")
    assert "start the server again, then:" in told["first"]
