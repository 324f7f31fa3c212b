"""Whole runs of ``conf=blackjack_twinkle`` against a scripted Twinkle server: processes, signals,
and the server's own count at the end."""

import itertools
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from mtrl_cli.assembly import check_capabilities
from mtrl_cli.chat.tokenizer import load_tokenizer
from mtrl_cli.config.compose import compose
from mtrl_cli.config.resolve import resolve
from mtrl_cli.config.rules.validate import validate
from mtrl_cli.errors import UsageError
from mtrl_cli.runs.trajectories import read_trajectories
from mtrl_cli.servers.twinkle.service import CAPABILITIES
from mtrl_cli.testing import faults
from mtrl_cli.testing.counted_world import Act
from mtrl_cli.testing.twinkle_server import ScriptedTwinkleServer
from tests.settlement import audit
from tests.settlement.process import Running
from tests.settlement.test_tenants import Tenant, stop_twice

MODEL = "model/scripted/twinkle/"
SAMPLE = "sampler/scripted/twinkle/sample"
_TOKENIZER = load_tokenizer("mtrl-tiny")
_END = _TOKENIZER.convert_tokens_to_ids("<|im_end|>")


class Player:
    """Plays 0, 1, 2, … in the order in which it is asked, so that no group's rewards are equal."""

    def __init__(self) -> None:
        self._count = itertools.count()
        self.returned: dict[tuple[int, ...], list[tuple[list[int], list[float]]]] = {}

    def __call__(self, tokens: Sequence[int], index: int) -> tuple[list[int], list[float]]:
        number = next(self._count)
        arguments = f'{{"value": {number % 10}}}'
        call = f'<tool_call>\n{{"name": "play", "arguments": {arguments}}}\n</tool_call>'
        ids = [*_TOKENIZER.encode(call), _END]
        logprobs = [-(number + place + 1) / 1024 for place in range(len(ids))]
        self.returned.setdefault(tuple(tokens), []).append((ids, logprobs))
        return ids, logprobs


@pytest.fixture
def player() -> Player:
    return Player()


@pytest.fixture
def server(player: Player) -> Iterator[ScriptedTwinkleServer]:
    with ScriptedTwinkleServer(sampler=player) as running:
        yield running


def where(server: ScriptedTwinkleServer) -> tuple[str, ...]:
    return (
        "conf=blackjack_twinkle",
        f'server.base_url="{server.url}"',
        "server.base_model=scripted",
        "server.tokenizer=mtrl-tiny",
        "group.per_step=2",
    )


def tenant(home: Path, name: str, server: ScriptedTwinkleServer) -> Tenant:
    return Tenant(home, name, *where(server))


def mtrl(cwd: Path, world: Tenant, *arguments: str) -> Running:
    return Running(*arguments, cwd=cwd, environ=world.world.environ())


def bodies(server: ScriptedTwinkleServer, call: str) -> list[Any]:
    return [request.body for request in server.requests(MODEL + call)]


def test_two_steps_from_the_samples_to_the_training_calls(tmp_path, server, player):
    one = tenant(tmp_path, "one", server)
    with one.training("train.checkpoint_every=1", "train.max_policy_lag=1") as run:
        assert run.code() == 0, run.out + run.err

    # Snapshots: a group under each, nothing in flight when the next one replaced it.
    commits = audit.records(one.folder, "commits.jsonl")
    policies = [commit["policy"] for commit in commits]
    assert len(set(policies)) == 3
    assert server.drifts == []
    assert server.base_samples == 0
    sampled = [request.body["adapter_uri"] for request in server.requests(SAMPLE)]
    assert set(sampled) <= set(policies)
    assert server.sampled_at_once == 1

    # What was trained: the saved trajectories, label by label.
    trained = bodies(server, "forward_backward")
    assert len(trained) == 2
    for step, body in enumerate(trained, 1):
        records = list(read_trajectories(one.folder / "trajectories" / f"step-{step:06d}.jsonl.gz"))
        records.sort(key=lambda record: (record["group"], record["member"]))
        assert len(body["inputs"]) == len(records) == 4
        for record, feature, old in zip(records, body["inputs"], body["old_logps"], strict=True):
            ids, labels, sampled = record["tokens"], [-100] * len(record["tokens"]), iter(old)
            for kind, start, end in record["spans"]:
                if kind == "sampled":
                    labels[start - 1 : end - 1] = ids[start:end]
                    logprobs = list(itertools.islice(sampled, end - start))
                    assert (ids[start:end], logprobs) in player.returned[tuple(ids[:start])]
            assert next(sampled, None) is None
            assert (feature["input_ids"], feature["labels"]) == (ids, labels)
        assert [len(group) for group in grouped(records, body["advantages"])] == [2, 2]
        for low, high in grouped(records, body["advantages"]):
            assert low * high < 0  # mean-centred: one better, one worse

    # One call after the other, each in the ledger with its outcome; the slot is free.
    calls = [e for e in audit.entries(one.folder) if e.entry == "call"]
    assert {entry.state for entry in calls} == {"done"}
    assert [entry.facts["kind"] for entry in calls] == [
        "create_model", "publish",
        *("forward_backward", "optim_step", "publish", "save_state") * 2,
        "unload_model",
    ]  # fmt: skip
    assert server.slots == set()
    assert one.world.live() == []
    check = mtrl(one.cwd, one, "verify", "last")
    assert check.code() == 0, check.out + check.err


def grouped(records: list[Any], values: Sequence[float]) -> list[list[float]]:
    groups: dict[int, list[float]] = {}
    for record, value in zip(records, values, strict=True):
        groups.setdefault(record["group"], []).append(value)
    return list(groups.values())


def test_a_drained_run_is_resumed_in_a_fresh_adapter(tmp_path, server):
    one = tenant(tmp_path, "one", server)
    with one.training("train.steps=50", "train.checkpoint_every=25") as run:
        run.wait(lambda: one.commits() > 1, "its first step")
        run.send(signal.SIGINT)
        assert run.code() == 130, run.out + run.err
    assert server.slots == set()
    stood = audit.committed(one.folder)
    last = audit.records(one.folder, "commits.jsonl")[-1]
    assert last["state"] in server.states  # a drain saves one
    played = len(server.requests(SAMPLE))

    again = mtrl(one.cwd, one, "train", "--resume", "last", f"train.steps={stood + 2}", "--force")
    assert again.code() == 0, again.out + again.err
    added = server.requests(MODEL + "add_adapter_to_model")
    assert len(added) == 2
    assert added[0].headers["X-Twinkle-Session-Id"] != added[1].headers["X-Twinkle-Session-Id"]
    assert [body["name"] for body in bodies(server, "resume_from_checkpoint")] == [last["state"]]
    assert audit.committed(one.folder) == stood + 2
    groups = [group for record in audit.records(one.folder, "commits.jsonl")
              for group in record["groups"]]  # fmt: skip
    assert sorted(map(int, groups)) == [*range(2 * (stood + 2))]
    assert len(server.requests(SAMPLE)) > played
    check = mtrl(one.cwd, one, "verify", "last")
    assert check.code() == 0, check.out + check.err
    assert server.drifts == []
    assert server.slots == set()


@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        (
            lambda server: server.faults.add(MODEL + "clip_grad_and_step", faults.drop_reply()),
            "optim_step may have been executed",
        ),
        pytest.param(
            lambda server: server.expire(next(iter(server.models))),
            "no longer has the adapter",
            marks=pytest.mark.long,
        ),
        pytest.param(
            lambda server: server.faults.add(
                MODEL + "forward_backward",
                faults.body({"result": {"logps": [[-0.1] * 999] * 4, "loss": None}}),
            ),
            "loss is nan",
            marks=pytest.mark.long,
        ),
    ],
    ids=["unknown", "expired", "nan"],
)
def test_a_run_that_broke_off_is_resumed_from_its_last_state(tmp_path, server, break_it, says):
    one = tenant(tmp_path, "one", server)
    with one.training("train.steps=4", "train.checkpoint_every=1") as run:
        run.wait(lambda: one.commits() > 2, "its second step")
        break_it(server)
        assert run.code() == 1, run.out + run.err
        assert says in run.err, run.err
        assert "Traceback" not in run.err
        assert max(map(len, run.err.splitlines())) < 1000
    assert server.slots == set()
    steps = {call.model: 0 for call in server.applications()}

    again = mtrl(one.cwd, one, "train", "--resume", "last")
    assert again.code() == 0, again.out + again.err
    assert audit.committed(one.folder) == 4
    [resumed] = {call.model for call in server.applications()} - set(steps)
    made = [call.kind for call in server.applications() if call.model == resumed]
    assert made[:3] == ["add_adapter_to_model", "resume_from_checkpoint", "save"]
    assert server.slots == set()


@pytest.mark.long
def test_a_killed_runs_slot_is_freed_by_cancel(tmp_path, server):
    one = tenant(tmp_path, "one", server)
    with one.training("train.steps=50") as run:
        run.wait(lambda: one.commits() > 1, "its first step")
        run.send(signal.SIGKILL)
        run.process.wait(10)
    assert len(server.slots) == 1
    cancel = mtrl(one.cwd, one, "cancel", "last")
    assert cancel.code() == 0, cancel.out + cancel.err
    assert "unloaded" in cancel.out + cancel.err
    assert server.slots == set()


@pytest.mark.long
def test_stopping_one_tenant_leaves_the_other_unharmed(tmp_path, server):
    staying, leaving = (tenant(tmp_path, name, server) for name in "ab")
    staying.world.script(step=Act(gate="step", instances=(5,)))  # in its second step
    with staying.training("train.steps=3") as run, leaving.training("train.steps=50") as other:
        other.wait(lambda: leaving.commits() > 1, "its first step")
        run.wait(lambda: staying.world.waiting("step") == 1, "its second step")
        assert server.slots == {staying.model, leaving.model}
        stop_twice(other, leaving)
        assert server.slots == {staying.model}
        staying.world.open("step")
        assert run.code() == 0, run.out + run.err
    assert audit.committed(staying.folder) == 3
    assert server.slots == set()
    assert server.drifts == []


@pytest.mark.long
def test_a_server_that_continues_another_context_trains_nothing(tmp_path):
    shifted = ScriptedTwinkleServer(sampler=Player(), echo=lambda ids: [ids[1], *ids[1:]])
    with shifted as server:
        one = tenant(tmp_path, "one", server)
        with one.training() as run:
            assert run.code() == 1
            assert "DivergentEncoding: token 0 is" in run.err
        assert server.applied("forward_backward") == 0
        assert server.slots == set()


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("server.snapshots=immutable", "server.snapshots"),
        ("server.dedupes=true", "server.dedupes"),
        ("train.loss_config={epsilon: 0.3}", "train.loss_config.epsilon"),
        ("train.kl=0.1", "train.kl"),
        ("train.lora_rank=null", "train.lora_rank"),
    ],
)
def test_what_twinkle_cannot_do_is_refused(override, key):
    given = where(ScriptedTwinkleServer())[2:]
    address = "server.base_url=http://127.0.0.1:1"
    experiment = resolve(compose("blackjack_twinkle", [address, *given, override]))
    problems = validate(experiment)
    if not problems:
        with pytest.raises(UsageError) as refused:
            check_capabilities(CAPABILITIES, experiment)
        problems = [str(refused.value)]
    assert [key in problem for problem in problems] == [True]
