"""A real OpenEnv server of the installed distribution, started as mtrl starts it: every way in
which a session fails has its right outcome.

The default suite runs against the installed distribution. For the other one (``openenv-core``
0.3 and ``openenv`` from 0.9 own the same import package) make a second environment::

    python -m venv other && other/bin/pip install -e '.[dev]'
    other/bin/pip uninstall -y openenv-core && other/bin/pip install openenv
    other/bin/python -m pytest tests/envs tests/tasks
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mtrl_cli.envs.interface import Deadlines, SessionLost, TaskEnvironment, Watch
from mtrl_cli.envs.openenv_remote import RemoteFactory
from mtrl_cli.envs.openenv_served import LOG, ServedEnvironments, sessions
from mtrl_cli.envs.openenv_server import tracing
from mtrl_cli.errors import MtrlError
from mtrl_cli.rollout.ports import (
    EnvironmentFault,
    InfrastructureFailure,
    StepOutcome,
    TaskSample,
    ToolCall,
    ToolError,
)
from mtrl_cli.runs.processes import Standing, process_facts, standing

WORLDS = "tests.envs.served_worlds"
SAMPLE = TaskSample("s", seed=7)
ROOM = sessions(2)


class Words:
    def reset_arguments(self, sample: TaskSample, member: int) -> Mapping[str, Any]:
        return {"seed": sample.seed, "unknown": "dropped or taken"}

    def action(self, call: ToolCall) -> Mapping[str, Any]:
        return {"do": call.name, **call.arguments}

    def observation_text(self, observation: Mapping[str, Any]) -> str:
        return str(observation["text"])


def go(do: str = "go", **arguments: Any) -> ToolCall:
    return ToolCall(do, arguments)


def serve(log: Path | None, world: str = "Misbehaving", concurrency: int = 2, **params: Any) -> Any:
    return ServedEnvironments(
        app=None,
        entrypoint=f"{WORLDS}:{world}",
        params=params,
        concurrency=concurrency,
        log=log,
    )


@pytest.fixture(scope="module")
def server() -> Iterator[ServedEnvironments]:
    made = serve(None, greeting="welcome")
    made.start()
    yield made
    made.stop()


@asynccontextmanager
async def client(server: ServedEnvironments, **options: Any) -> AsyncIterator[RemoteFactory]:
    deadlines = Deadlines(**{"open": 20.0, **options.pop("seconds", {})})
    factory = RemoteFactory(
        server.url, Words(), deadlines=deadlines, check_server=server.check_alive, **options
    )
    yield factory
    await factory.close()


@asynccontextmanager
async def begun(
    server: ServedEnvironments, **options: Any
) -> AsyncIterator[tuple[TaskEnvironment, RemoteFactory]]:
    async with client(server, **options) as factory:
        environment = await factory.open()
        assert (await environment.reset(SAMPLE, 0)).endswith(" 7")
        yield environment, factory
        await environment.close()


async def fresh(factory: RemoteFactory) -> None:
    """Another session is one of its own, in order, and reset."""
    environment = await factory.open()
    assert await environment.reset(SAMPLE, 0) == "welcome 7"
    assert await environment.step(go()) == StepOutcome("go 1", 0.5, False)
    await environment.close()


async def test_an_episode(server: ServedEnvironments) -> None:
    async with begun(server) as (environment, factory):
        assert await environment.step(go()) == StepOutcome("go 1", 0.5, False)
        assert await environment.step(go("end")) == StepOutcome("over", 1.0, True)
        with pytest.raises(EnvironmentFault, match="step after the end"):
            await environment.step(go())
        await fresh(factory)


async def test_a_late_reply_is_never_read(server: ServedEnvironments) -> None:
    async with begun(server, seconds={"step": 0.2}) as (environment, factory):
        with pytest.raises(SessionLost, match="step passed its deadline"):
            await environment.step(go("sleep", value=0.5))
        await asyncio.sleep(0.5)
        with pytest.raises(SessionLost, match="no step, step passed its deadline"):
            await environment.step(go())
        await fresh(factory)


async def test_a_cancelled_step(server: ServedEnvironments) -> None:
    async with begun(server) as (environment, factory):
        step = asyncio.create_task(environment.step(go("sleep", value=0.3)))
        await asyncio.sleep(0.1)
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
        with pytest.raises(SessionLost, match="no step, step was cancelled"):
            await environment.step(go())
        await fresh(factory)


async def test_a_full_server_is_waited_for_also_behind_an_abandoned_step(
    server: ServedEnvironments,
) -> None:
    """The server frees a slot only when the step in it has returned."""
    watch = Watch()
    async with client(server, seconds={"step": 0.2}, watch=watch) as factory:
        held = [await factory.open() for _ in range(ROOM)]
        for environment in held:
            await environment.reset(SAMPLE, 0)
        begin = time.monotonic()
        slow = [environment.step(go("sleep", value=1.0)) for environment in held]
        for failure in await asyncio.gather(*slow, return_exceptions=True):
            assert isinstance(failure, SessionLost)
        for environment in held:
            await environment.close()
        await fresh(factory)
        assert time.monotonic() - begin > 0.9
    assert watch.counts["waits_for_capacity"] >= 1


async def test_an_action_that_the_class_refuses(server: ServedEnvironments) -> None:
    async with begun(server) as (environment, _):
        with pytest.raises(ToolError, match="The argument 'value' is wrong: Input should be a"):
            await environment.step(go(value="much"))
        assert (await environment.step(go())).text == "go 1"


async def test_a_validator_that_raises_kills_the_session_at_the_server(
    server: ServedEnvironments,
) -> None:
    """OpenEnv cannot write pydantic's error down then. A version that can answers the model."""
    async with begun(server) as (environment, factory):
        with pytest.raises((SessionLost, ToolError)) as caught:
            await environment.step(go("invalid"))
        if isinstance(caught.value, SessionLost):
            assert "step failed at the server" in str(caught.value)
            with pytest.raises(SessionLost, match="no step"):
                await environment.step(go())
        await fresh(factory)


async def test_an_environment_that_raises(server: ServedEnvironments) -> None:
    async with begun(server) as (environment, factory):
        with pytest.raises(EnvironmentFault, match=r"\.step raised nothing here$"):
            await environment.step(go("raise"))
        await fresh(factory)


def test_the_servers_log_has_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    class Raises:
        def reset(self) -> None: ...

        def step(self) -> None:
            raise LookupError("nothing here")

    with pytest.raises(LookupError):
        tracing(Raises)().step()  # type: ignore[attr-defined]
    assert 'raise LookupError("nothing here")' in capsys.readouterr().err


async def test_a_reward_that_is_no_number_arrives_as_none(server: ServedEnvironments) -> None:
    """JSON has no word for it, and OpenEnv writes null: only an embedded environment's is seen."""
    async with begun(server) as (environment, _):
        assert (await environment.step(go("nan"))).reward == 0.0


async def test_an_observation_that_cannot_be_written(server: ServedEnvironments) -> None:
    async with begun(server) as (environment, factory):
        with pytest.raises(EnvironmentFault, match=r"\.step raised .*serialize"):
            await environment.step(go("odd"))
        await fresh(factory)


async def test_observations_and_actions_beyond_every_measure(server: ServedEnvironments) -> None:
    async with begun(server) as (environment, factory):
        cut = await environment.step(go("long", value=1e6))
        assert cut.text.endswith("[cut here: 980,000 more characters]")
        with pytest.raises(SessionLost, match="the connection broke: WebSocketError"):
            await environment.step(go("long", value=17 * 2**20))
        await fresh(factory)
    async with begun(server) as (environment, factory):
        with pytest.raises(SessionLost):
            await environment.step(go(text="x" * 17 * 2**20))
        await fresh(factory)


async def test_a_server_that_dies_ends_the_run_with_its_last_words(tmp_path: Path) -> None:
    server = serve(tmp_path / LOG)
    async with server:
        facts = process_facts(server.pid)
        async with client(server) as factory:
            one, other = await factory.open(), await factory.open()
            for environment in (one, other):
                await environment.reset(SAMPLE, 0)
            with pytest.raises(SessionLost, match="the connection broke"):
                await one.step(go("die"))
            with pytest.raises(SessionLost):
                await other.step(go())
            await asyncio.to_thread(server._process.wait)
            with pytest.raises(MtrlError, match="server of this run has ended: dying as told"):
                await factory.open()
            await one.close()
            await other.close()
    assert standing(facts) is Standing.GONE


@pytest.mark.long
async def test_a_blocked_server_loses_no_session(tmp_path: Path) -> None:
    server = serve(tmp_path / LOG, "Blocking")
    async with server, client(server) as factory:
        one, other = await factory.open(), await factory.open()
        for environment in (one, other):
            await environment.reset(SAMPLE, 0)
        stepped = asyncio.create_task(one.step(go("sleep", value=0.5)))
        await asyncio.sleep(0.1)
        assert (await other.step(go())).text == (await stepped).text == "blocked"
        await asyncio.gather(one.close(), other.close())


@pytest.mark.parametrize(
    ("what", "concurrency", "words"),
    [
        ({"entrypoint": f"{WORLDS}:Single"}, 2, "a server holds one session of it; write SUPPORTS"),
        ({"entrypoint": f"{WORLDS}:Misbehaved"}, 1, "did you mean 'Misbehaving'"),
        ({"app": "mtrl_cli.errors:app"}, 1, "has no 'app'"),
        ({"app": "tests.envs.test_served:WORLDS"}, 1, "it is a str, not an application"),
    ],
)
def test_a_start_that_fails_says_why_in_one_line(
    tmp_path: Path, what: dict[str, Any], concurrency: int, words: str
) -> None:
    given: dict[str, Any] = {"app": None, "entrypoint": None, **what}
    server = ServedEnvironments(**given, params={}, concurrency=concurrency, log=tmp_path / LOG)
    with pytest.raises(MtrlError, match=r"^env\.(app|entrypoint) .* did not start: ") as caught:
        server.start()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not server.alive


SMALL_APP = """
import json, os
async def app(scope, receive, send):
    if scope['type'] != 'http':
        return
    body = json.dumps({'action': os.environ['MAX_CONCURRENT_ENVS']}).encode()
    await send({'type': 'http.response.start', 'status': 200, 'headers': []})
    await send({'type': 'http.response.body', 'body': body})
"""


def small(folder: Path) -> ServedEnvironments:
    (folder / "mine.py").write_text(SMALL_APP)
    return ServedEnvironments(
        app=f"{folder}/mine.py:app", entrypoint=None, params={}, concurrency=40, log=folder / LOG
    )


def test_it_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    code = f"""
import time
from pathlib import Path
from tests.envs.test_served import small
server = small(Path({str(tmp_path)!r}))
server.start()
print(server.pid, flush=True)
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    try:
        facts = process_facts(int(parent.stdout.readline()))
        assert standing(facts) is Standing.ALIVE
    finally:
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        parent.stdout.close()
    deadline = time.monotonic() + 10
    while standing(facts) is not Standing.GONE:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_an_application_is_told_how_many_sessions(tmp_path: Path) -> None:
    server = small(tmp_path)
    server.start()
    try:
        with urllib.request.urlopen(f"{server.url}/schema") as answer:
            assert json.loads(answer.read()) == {"action": "45"}
    finally:
        server.stop()


@pytest.mark.long
async def test_a_server_that_is_gone_is_infrastructure() -> None:
    factory = RemoteFactory("http://127.0.0.1:9", Words())
    with pytest.raises(InfrastructureFailure, match="Cannot connect"):
        await factory.open()
    await factory.close()
