"""`mtrl doctor`: against the embedded server, scripted servers with faults, and every kind of
environment. What it says is read from its JSON; what it leaves is looked for on disk and at the
servers."""

import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from mtrl_cli.chat.tokenizer import load_tokenizer
from mtrl_cli.envs.openenv_served import ServedEnvironments
from mtrl_cli.testing import faults
from mtrl_cli.testing.e2b_emulator import E2BEmulator
from mtrl_cli.testing.policy_server import ScriptedPolicyServer
from mtrl_cli.testing.twinkle_server import ScriptedTwinkleServer
from tests.cli.processes import ROOT, command, environment
from tests.cli.world import World

_TOKENIZER = load_tokenizer("mtrl-tiny")
_END = _TOKENIZER.convert_tokens_to_ids("<|im_end|>")
ANSWER = [*_TOKENIZER.encode("stand"), _END]


class Consulted:
    """One run of the doctor: its exit code, and its findings by topic."""

    def __init__(self, done: "subprocess.CompletedProcess[str]") -> None:
        self.code = done.returncode
        self.text = done.stdout + done.stderr
        self.facts: dict[str, Any] = json.loads(done.stdout)

    def __getitem__(self, topic: str) -> list[str]:
        """The states of a topic's findings."""
        return [one["state"] for one in self.facts["checks"] if one["topic"] == topic]

    def says(self, topic: str) -> str:
        return " | ".join(
            f"{one['says']} → {one['todo']}"
            for one in self.facts["checks"]
            if one["topic"] == topic
        )

    @property
    def failed(self) -> set[str]:
        return {one["topic"] for one in self.facts["checks"] if one["state"] == "FAIL"}

    @property
    def skipped(self) -> set[str]:
        return {one["topic"] for one in self.facts["checks"] if one["state"] == "SKIP"}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def doctor(world: World, *arguments: str, **extra: str) -> Consulted:
    done = subprocess.run(
        command("doctor", "--json", *arguments),
        cwd=world.folder,
        env=environment(MTRL_HOME=str(world.home), **extra),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    return Consulted(done)


def test_the_default_experiment_is_well_and_nothing_is_left(world: World) -> None:
    done = world.mtrl("doctor")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert {line.split()[0] for line in lines[:-1]} == {"OK"}
    assert lines[-1] == f"{len(lines) - 1} OK, 0 WARN, 0 FAIL, 0 SKIP"
    for words in (
        "honours its seed",
        "stepped with play: reward",
        "serves mtrl-tiny",
        "snapshots: immutable (known)",
        "a sampled stop token ends the turn, and comes back",
        "the trainer's logprobs differ from the sampler's by",
        "everything that was borrowed was given back",
    ):
        assert words in done.stdout
    assert not (world.folder / "runs").exists()


# --- servers --------------------------------------------------------------------------------------


class Player:
    """Answers a turn with `ANSWER` four times, then with the end marker alone: the doctor's four
    turns, and its question about stop tokens."""

    def __init__(self, stops: bool = True) -> None:
        self._count = itertools.count()
        self._stops = stops

    def __call__(self, tokens: Sequence[int], seed: int) -> tuple[list[int], list[float]]:
        ids = [_END] if self._stops and next(self._count) >= 4 else ANSWER
        return ids, [-0.5 - place / 64 for place in range(len(ids))]


@pytest.fixture
def server() -> Iterator[ScriptedPolicyServer]:
    with ScriptedPolicyServer(sampler=Player(), api_key="k-123456") as running:
        yield running


def at(server: ScriptedPolicyServer, *more: str, kind: str = "tinker") -> tuple[str, ...]:
    return (
        f"server={kind}",
        f'server.base_url="{server.url}"',
        "server.base_model=scripted",
        "server.tokenizer=mtrl-tiny",
        "server.sample_timeout=3",
        "server.training_timeout=3",
        "train.kl=0",
        "train.kl_end_step=null",
        "train.lora_rank=8",
        *more,
    )


KEY = {"TINKER_API_KEY": "k-123456"}


def test_an_unknown_server_is_warned_of_and_left_without_gradients(
    world: World, server: ScriptedPolicyServer
) -> None:
    found = doctor(world, *at(server), **KEY)
    assert (found.code, found.failed, found.skipped) == (0, set(), set()), found.text
    assert "groups in flight finish before each optimizer step" in found.says("capabilities")
    assert "if you know better, set server.snapshots" in found.says("capabilities")
    facts = {one["name"]: one for one in found.facts["capabilities"]}
    assert (facts["snapshots"]["value"], facts["snapshots"]["source"]) == ("live", "assumed")
    assert facts["cancels"]["source"] == "found"
    # The probe's gradients were consumed by a step that changes nothing, and the model is gone.
    steps = [call.body for call in server.applications() if call.kind == "optim_step"]
    assert [step["adam_params"]["learning_rate"] for step in steps] == [0.0]
    assert dict(server.models) == {}
    assert "k-123456" not in found.text


@pytest.mark.long
def test_a_server_that_keeps_gradients_to_itself_is_not_stepped(
    world: World, server: ScriptedPolicyServer
) -> None:
    found = doctor(world, *at(server, "server.leaks_gradients=false"), **KEY)
    assert (found.code, found["parity"]) == (0, ["OK"]), found.text
    kinds = [call.kind for call in server.applications()]
    assert kinds == ["create_model", "forward_backward", "unload_model"]


def test_without_training_no_model_is_created(world: World, server: ScriptedPolicyServer) -> None:
    found = doctor(world, *at(server), "--no-training", **KEY)
    assert (found.code, found["parity"], server.applied()) == (0, ["SKIP"], 0)
    assert found["sample"] == ["OK", "OK"]


@pytest.mark.parametrize(
    ("arguments", "key", "says"),
    [
        ((), "wrong-key", "does not take this API key"),
        pytest.param(
            ("server.base_model=scriptet",),
            "k-123456",
            "did you mean 'scripted'?",
            marks=pytest.mark.long,
        ),
        (('server.base_url="http://127.0.0.1:9"',), "k-123456", "no training server answers at"),
    ],
)
def test_a_server_that_is_not_to_be_had(
    world: World, server: ScriptedPolicyServer, arguments: tuple[str, ...], key: str, says: str
) -> None:
    found = doctor(world, *at(server, *arguments), TINKER_API_KEY=key)
    assert (found.code, found.failed) == (1, {"server"}), found.text
    assert says in found.says("server")
    assert found.skipped == {"capabilities", "sample", "stop ids", "logprobs", "parity"}
    assert found["episode"] == ["OK", "OK", "OK"]
    assert found["returned"] == ["OK"]
    assert not (world.folder / "runs").exists()


@pytest.mark.long
def test_a_secret_that_is_not_set_skips_what_needs_it(
    world: World, server: ScriptedPolicyServer
) -> None:
    found = doctor(world, *at(server))
    assert (found.code, found.failed) == (1, {"server secrets"}), found.text
    assert "export TINKER_API_KEY=…" in found.says("server secrets")
    assert "server" in found.skipped
    assert found["environment"] == ["OK"]
    assert server.requests() == []


def _sampler(ids: Sequence[int], logprobs: Sequence[float]) -> Any:
    return lambda tokens, seed: {
        "tokens": list(ids), "logprobs": list(logprobs), "stop_reason": "stop"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("sampler", "topic", "says"),
    [
        (_sampler([5, _END], [0.3, -0.1]), "sample", "logprob 0.3 of sampled token 0 is not"),
        pytest.param(
            _sampler([5, _END], [-0.1]),
            "sample",
            "returned 2 tokens and 1 logprobs",
            marks=pytest.mark.long,
        ),
        (_sampler([5, 70_000], [-0.1, -0.1]), "sample", "token 70000 was sampled, and the"),
        (Player(stops=False), "stop ids", "stop ids are not honoured"),
    ],
)
def test_what_cannot_be_trained_is_a_failure(
    world: World, sampler: Any, topic: str, says: str
) -> None:
    with ScriptedPolicyServer(sampler=sampler) as server:
        found = doctor(world, *at(server, "env.check_seeds=false"), **KEY)
    assert (found.code, found.failed) == (1, {topic}), found.text
    assert says in found.says(topic)


def test_a_trainer_that_disagrees_is_a_failure_and_its_model_is_unloaded(world: World) -> None:
    def trainer(data: Sequence[Any]) -> list[list[float]]:
        return [[-3.0] * len(datum["loss_fn_inputs"]["logprobs"]["data"]) for datum in data]

    with ScriptedPolicyServer(sampler=Player(), trainer=trainer) as server:
        found = doctor(world, *at(server), **KEY)
        assert (found.code, found.failed) == (1, {"parity"}), found.text
        assert "docs/audit.md" in found.says("parity")
        assert (dict(server.models), found["returned"]) == ({}, ["OK"])


@pytest.mark.long
def test_a_training_call_of_unknown_outcome(world: World, server: ScriptedPolicyServer) -> None:
    server.faults.add("forward_backward", faults.drop_reply())
    found = doctor(world, *at(server), **KEY)
    assert (found.code, found.failed) == (1, {"parity"}), found.text
    assert dict(server.models) == {}
    assert server.applied("forward_backward") == 1


def test_a_server_that_hangs_meets_the_deadline(world: World, server: ScriptedPolicyServer) -> None:
    server.faults.add("asample", faults.hang(), times=99)
    found = doctor(world, *at(server, "server.sample_timeout=1"), **KEY)
    assert (found.code, found.failed) == (1, {"sample"}), found.text
    assert found.skipped == {"stop ids", "logprobs", "parity"}
    assert found["returned"] == ["OK"]


def test_a_twinkle_server(world: World) -> None:
    with ScriptedTwinkleServer(sampler=Player()) as server:
        found = doctor(world, *at(server, kind="twinkle"))
        assert (found.code, found.failed) == (0, set()), found.text
        assert "groups in flight finish before each save" in found.says("capabilities")
        assert "nothing to compare" in found.says("logprobs")
        assert found["parity"] == ["OK"]
        assert (len(server.slots), dict(server.models)) == (0, {})


# --- environments ---------------------------------------------------------------------------------


@pytest.mark.long
def test_a_server_of_environments_that_is_started(world: World) -> None:
    found = doctor(world, "env=openenv_served", "run.concurrency=2")
    assert (found.code, found["environment"]) == (0, ["OK"]), found.text
    assert found["episode"] == ["OK", "OK", "OK"]
    assert not (world.folder / "runs").exists()


@pytest.mark.long
def test_a_remote_server_of_environments(world: World) -> None:
    served = ServedEnvironments(
        app=None, entrypoint=CLASS, params={}, concurrency=2, log=world.folder / "served.log"
    )
    served.start()
    try:
        found = doctor(world, "env=openenv_remote", f'env.base_url="{served.url}"', "--no-training")
    finally:
        served.stop()
    assert (found.code, found["environment"]) == (0, ["OK"]), found.text
    assert found["episode"] == ["OK", "OK", "OK"]


@pytest.mark.long
def test_a_remote_server_that_is_not_there(world: World) -> None:
    nowhere = ("env=openenv_remote", 'env.base_url="http://127.0.0.1:9"')
    found = doctor(world, *nowhere, "env.open_timeout=2", "--no-training")
    assert (found.code, found.failed) == (1, {"environment"}), found.text
    assert "env.base_url: http://127.0.0.1:9 cannot be reached" in found.says("environment")
    assert (found["episode"], found["sample"][0]) == (["SKIP"], "OK")


CLASS = "mtrl_cli.tasks.blackjack.env:BlackjackEnvironment"
GAME = """
from openenv.core.env_server import Action, Environment, Observation, State

class Act(Action):
    action: str

class Seen(Observation):
    cards: str = ""

class Game(Environment[Act, Seen, State]):
    deals = 0
    def reset(self, seed=None, episode_id=None, **given) -> Seen:
        {reset}
        Game.deals += 1
        return Seen(cards=str(Game.deals))
    def step(self, action: Act, **given) -> Seen:
        return Seen(cards="x", reward=1.0, done=True)
    @property
    def state(self):
        return State()
"""
TASK = (
    "task.entrypoint=mtrl_cli.tasks.declared:DeclaredTask",
    "task.params={tools: [{name: play, properties: {action: {enum: [hit, stand]}}}],"
    " actions: {play: {action: {from: action, values: {hit: hit}}}}}",
)


@pytest.mark.parametrize(
    ("reset", "code", "says"),
    [
        ("pass", 0, "it ignores its seed"),
        pytest.param("raise ValueError('no cards')", 1, "no cards", marks=pytest.mark.long),
    ],
)
def test_an_environment_that_is_not_well(world: World, reset: str, code: int, says: str) -> None:
    (world.folder / "game.py").write_text(GAME.replace("{reset}", reset))
    found = doctor(world, "env.entrypoint=game.py:Game", *TASK, "--no-training")
    assert found.code == code, found.text
    assert says in found.says("episode")
    assert found["sample"][0] == "OK"
    if code == 0:
        assert "the embedded model reads and writes blackjack's words alone" in found.says("sample")
        sent = 'stepped with play \'{"action": "stand"}\', as its schema has it, which it refused: '
        assert f"{sent}\"The argument 'action' is none of hit\"" in found.says("episode")


@pytest.mark.long
def test_a_call_of_invented_words_may_be_refused(world: World) -> None:
    found = doctor(world, "conf=records", "--no-training")
    assert found.code == 0, found.text
    assert "in part invented, which it refused: 'The columns of" in found.says("episode")
    assert set(found["episode"]) == {"OK"}


@pytest.mark.long
def test_sandboxes_and_the_orphans_of_a_dead_run(world: World) -> None:
    pytest.importorskip("e2b")
    with E2BEmulator() as service:
        made = subprocess.run(
            [sys.executable, "-c", ORPHAN], env=environment(**service.environ()), check=True
        )
        assert made.returncode == 0
        (orphan,) = service.live
        found = doctor(world, "conf=blackjack_e2b", "env.e2b.settles=2", "--no-training",
                       **service.environ())  # fmt: skip
        assert (found.code, found["environment"]) == (0, ["OK"]), found.text
        assert found["episode"] == ["OK", "OK", "OK"]
        assert "1 of run gone-1 live" in found.says("sandboxes")
        assert service.live == [orphan]  # what is not ours is named, and not touched


ORPHAN = """
import asyncio
from e2b import AsyncSandbox
known = {"mtrl": "sandbox", "mtrl_run": "gone-1"}
asyncio.run(AsyncSandbox.create("base", timeout=600, metadata=known))
"""


# --- packages, configuration, stops, what is left -------------------------------------------------


def test_several_wrong_settings_stand_in_lines_of_their_own(world: World) -> None:
    done = world.mtrl("doctor", "group.size=x", "train.steps=y")
    assert done.returncode == 1
    assert done.stdout.splitlines()[:3] == [
        "FAIL configuration  2 settings are wrong",
        " " * 20 + "group.size=x: group.size is a whole number, not 'x'",
        " " * 20 + "train.steps=y: train.steps is a whole number, not 'y'",
    ]


@pytest.mark.parametrize(
    ("arguments", "topic", "says"),
    [
        (("conf=blackjak",), "configuration", "did you mean conf=blackjack?"),
        pytest.param(("group.size=1",), "configuration", "group.size is 1", marks=pytest.mark.long),
        (("server.tokenizer=nowhere.json",), "tokenizer", "no such file"),
        pytest.param(("server.renderer=gpt-oss",), "tokenizer", "cannot", marks=pytest.mark.long),
        pytest.param(
            ("task.entrypoint=no.such:Task",),
            "task",
            "there is no module 'no'",
            marks=pytest.mark.long,
        ),
    ],
)
def test_what_is_wrong_here_is_told_and_what_needs_it_is_skipped(
    world: World, arguments: tuple[str, ...], topic: str, says: str
) -> None:
    found = doctor(world, *arguments)
    assert (found.code, found.failed) == (1, {topic}), found.text
    assert says in found.says(topic)


def test_packages_that_do_not_fit_or_own_one_name(world: World) -> None:
    for name, version in (("numpy", "1.0"), ("openenv", "0.10.0")):
        facts = world.folder / "site" / f"{name}-{version}.dist-info"
        facts.mkdir(parents=True)
        (facts / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    found = doctor(world, "group.size=1", PYTHONPATH=f"{ROOT}:{world.folder / 'site'}")
    assert found.failed == {"configuration", "packages"}, found.text
    assert (
        "mtrl-cli requires numpy>=1.26, and 1.0 is installed → python -m pip install"
        in found.says("packages")
    )
    assert "are both installed and own the same import package" in found.says("packages")
    assert found["packages"].count("WARN") == 1


def test_ctrl_c_gives_everything_back(world: World, server: ScriptedPolicyServer) -> None:
    server.faults.add("asample", faults.hang(), times=99)
    process = subprocess.Popen(
        command("doctor", *at(server, "server.sample_timeout=60")),
        cwd=world.folder, env=environment(**KEY), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    _until(lambda: server.requests("asample"))
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "OK   returned" in out
    assert not (world.folder / "runs").exists()


@pytest.mark.long
def test_a_killed_doctor_is_a_dead_run_that_the_next_one_finds(
    world: World, server: ScriptedPolicyServer
) -> None:
    server.faults.add("forward_backward", faults.hang(), times=1)
    process = subprocess.Popen(
        command("doctor", *at(server, "server.training_timeout=60")),
        cwd=world.folder, env=environment(**KEY), stdout=subprocess.DEVNULL,
    )  # fmt: skip
    _until(lambda: server.requests("forward_backward"))
    process.kill()
    process.wait()
    (run,) = [path.name for path in (world.folder / "runs").iterdir()]
    assert len(server.models) == 1
    found = doctor(world, *at(server), "--no-training", **KEY)
    assert found["runs"] == ["WARN"], found.text
    assert f"mtrl cancel {run}" in found.says("runs")
    settled = world.mtrl("cancel", run, **KEY)
    assert settled.returncode == 0, settled.stderr
    assert dict(server.models) == {}
    assert doctor(world, *at(server), "--no-training", **KEY)["runs"] == ["OK"]


def _until(holds: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.05)
