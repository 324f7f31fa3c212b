"""A session of OpenEnv's wire protocol: what comes late, breaks or makes no sense ends it for good,
and no reply is ever taken for the answer to another request."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from mtrl_cli.envs.interface import Deadlines, SessionLost, TaskEnvironment, Watch
from mtrl_cli.envs.openenv_remote import RemoteFactory, without_password
from mtrl_cli.errors import MtrlError, UsageError
from mtrl_cli.rollout.ports import (
    EnvironmentFault,
    InfrastructureFailure,
    StepOutcome,
    TaskSample,
    ToolCall,
    ToolError,
)
from tests.envs.wire_server import Handler, Peer, WireServer, playing, serving

SAMPLE = TaskSample("s", seed=7)


class Words:
    def reset_arguments(self, sample: TaskSample, member: int) -> Mapping[str, Any]:
        return {"seed": sample.seed, "member": member}

    def action(self, call: ToolCall) -> Mapping[str, Any]:
        return {"do": call.name, **call.arguments}

    def observation_text(self, observation: Mapping[str, Any]) -> str:
        assert set(observation) == {"text"}
        return str(observation["text"])


def act(do: str = "go", **arguments: Any) -> ToolCall:
    return ToolCall(do, arguments)


@asynccontextmanager
async def client(server: WireServer, **options: Any) -> AsyncIterator[RemoteFactory]:
    seconds = {"open": 2.0, "reset": 2.0, "step": 2.0, "close": 1.0}
    given = {**seconds, **options.pop("seconds", {})}
    factory = RemoteFactory(server.url, Words(), deadlines=Deadlines(**given), **options)
    yield factory
    await factory.close()


@asynccontextmanager
async def begun(
    handler: Handler, **options: Any
) -> AsyncIterator[tuple[TaskEnvironment, WireServer]]:
    """A session that was opened and reset in good order, and then ``handler`` takes over."""

    async def scripted(peer: Peer) -> None:
        assert (await peer.ask())["type"] == "state"
        await peer.answer("state")
        assert await peer.ask() == {"type": "reset", "data": {"seed": 7, "member": 0}}
        await peer.observe("begun")
        await handler(peer)

    async with serving(scripted) as server, client(server, **options) as factory:
        environment = await factory.open()
        assert await environment.reset(SAMPLE, 0) == "begun"
        yield environment, server
        await environment.close()
        await until(lambda: server.live == 0)
        assert server.connections == 1


async def until(condition: Any) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


async def test_an_episode() -> None:
    async with serving() as server, client(server, headers={"X-Key": "k"}) as factory:
        environment = await factory.open()
        assert await environment.reset(SAMPLE, 3) == "reset 7"
        assert await environment.step(act()) == StepOutcome("go 1", 0.5, False)
        assert await environment.step(act("end")) == StepOutcome("end 2", 0.5, True)
        with pytest.raises(EnvironmentFault, match="step after the end"):
            await environment.step(act())
        await environment.close()
        await environment.close()
        await until(lambda: server.live == 0)
        assert server.headers[0]["X-Key"] == "k"
        with pytest.raises(SessionLost, match="no reset, it is closed"):
            await environment.reset(SAMPLE, 0)


# --- the time that it takes -------------------------------------------------------------------


async def late(peer: Peer) -> None:
    assert (await peer.ask())["type"] == "step"
    await asyncio.sleep(0.15)
    await peer.observe("late", 1.0)
    assert (await peer.ask())["type"] == "gone"


async def test_a_step_past_its_deadline_is_never_answered_by_its_late_reply() -> None:
    watch = Watch()
    async with begun(late, seconds={"step": 0.05}, watch=watch) as (environment, _):
        with pytest.raises(SessionLost, match=r"step passed its deadline of 0\.05 s"):
            await environment.step(act())
        await asyncio.sleep(0.2)
        for _ in range(2):
            with pytest.raises(SessionLost, match="no step, step passed its deadline"):
                await environment.step(act())
    assert watch.counts["sessions_lost"] == 3


async def test_a_cancelled_step_ends_the_session() -> None:
    async with begun(late) as (environment, _):
        step = asyncio.create_task(environment.step(act()))
        await asyncio.sleep(0.05)
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
        await asyncio.sleep(0.2)
        with pytest.raises(SessionLost, match="no step, step was cancelled"):
            await environment.step(act())


async def test_pings_are_answered_while_nothing_is_asked() -> None:
    async def pings(peer: Peer) -> None:
        await peer.socket.ping(b"there?")
        message = await peer.socket.receive()  # aiohttp hides the pong: the next is the step
        assert '"step"' in message.data
        await peer.observe("alive")
        await peer.ask()

    async with begun(pings) as (environment, _):
        await asyncio.sleep(0.05)
        assert (await environment.step(act())).text == "alive"


async def test_a_close_that_is_not_confirmed_is_said() -> None:
    async def deaf(peer: Peer) -> None:
        await asyncio.sleep(1.0)

    async with serving(playing) as server, client(server, seconds={"close": 0.1}) as factory:
        environment = await factory.open()
        server.handler = deaf
        stuck = asyncio.create_task(factory.open())
        await asyncio.sleep(0.05)
        stuck.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stuck
        await environment.close()
        await until(lambda: server.live == 0)

    async def ignores(peer: Peer) -> None:
        await peer.ask()
        await asyncio.sleep(0.5)

    async with begun(ignores, seconds={"close": 0.1}) as (environment, _):
        with pytest.raises(InfrastructureFailure, match=r"did not confirm .* within 0\.1 s"):
            await environment.close()
        with pytest.raises(InfrastructureFailure, match="did not confirm"):
            await environment.close()
        environment.close = nothing  # type: ignore[method-assign]


async def nothing() -> None: ...


# --- the connection ---------------------------------------------------------------------------


@pytest.mark.parametrize("code", [1000, 1001, 1009, 1011, 1012])
async def test_a_session_that_the_server_closed_is_lost_for_good(code: int) -> None:
    async def closes(peer: Peer) -> None:
        await peer.ask()
        await peer.socket.close(code=code)

    async with begun(closes) as (environment, _):
        with pytest.raises(SessionLost, match=rf"the server closed the connection \(code {code}\)"):
            await environment.step(act())
        with pytest.raises(SessionLost, match="no step, the server closed the connection"):
            await environment.step(act())


async def test_a_broken_connection_is_lost_also_between_two_steps() -> None:
    async def breaks(peer: Peer) -> None:
        await peer.ask()
        await peer.observe("one")
        transport = peer.socket._req.transport  # type: ignore[union-attr]
        assert transport is not None
        transport.abort()

    async with begun(breaks) as (environment, _):
        assert (await environment.step(act())).text == "one"
        with pytest.raises(SessionLost, match="the connection broke"):
            await environment.step(act())


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        ("not json", "a frame came that is not JSON"),
        ("[" * 100_000 + "]" * 100_000, "a frame came that is not JSON"),
        ("[1]", "a frame came that is no JSON object"),
        (b"bytes", "the connection broke"),
        ('{"type": "state", "data": {}}', "step was answered by {.*state"),
        ('{"type": "observation", "data": 3}', "step was answered by"),
        ('{"type": "error", "data": 3}', "step failed at the server"),
        ('{"type": "error"}', "step failed at the server"),
        ("{}", "step was answered by {}"),
        ('"' + "x" * 17 * 2**20 + '"', "the connection broke: WebSocketError: .*size"),
    ],
)
async def test_frames_that_make_no_sense(frame: str | bytes, reason: str) -> None:
    async def speaks(peer: Peer) -> None:
        await peer.ask()
        await (peer.socket.send_str if isinstance(frame, str) else peer.socket.send_bytes)(frame)
        await peer.ask()

    async with begun(speaks) as (environment, _):
        with pytest.raises(SessionLost, match=reason):
            await environment.step(act())
        with pytest.raises(SessionLost, match="no step, "):
            await environment.step(act())


async def test_an_answer_that_nobody_asked_for_ends_the_session() -> None:
    async def doubles(peer: Peer) -> None:
        await peer.ask()
        await peer.observe("one")
        await peer.observe("two")
        await peer.ask()

    async with begun(doubles) as (environment, _):
        assert (await environment.step(act())).text == "one"
        await asyncio.sleep(0.05)
        with pytest.raises(SessionLost, match="a frame came that nobody had asked for"):
            await environment.step(act())


# --- what the server refuses ------------------------------------------------------------------


def answering(*codes: str, **more: Any) -> Handler:
    async def answers(peer: Peer) -> None:
        for code in codes:
            await peer.ask()
            if code == "ok":
                await peer.observe("ok")
            else:
                await peer.error(code, "the reason\nand a trace", **more)
        await peer.ask()

    return answers


async def test_a_refused_action_is_answered_to_the_model_with_its_reason() -> None:
    errors = [{"loc": ["move", 0], "msg": "Input should be a number", "type": "x"}, {"loc": []}]
    async with begun(answering("VALIDATION_ERROR", "ok", errors=errors)) as (environment, _):
        with pytest.raises(ToolError, match=r"^The argument 'move.0' is wrong: Input should be a"):
            await environment.step(act())
        assert (await environment.step(act())).text == "ok"


@pytest.mark.parametrize("errors", [5, {"a": 1}, None, [7], [{"loc": 5, "msg": None}]])
async def test_a_refusal_without_a_readable_reason_is_still_one(errors: Any) -> None:
    async with begun(answering("VALIDATION_ERROR", "ok", errors=errors)) as (environment, _):
        with pytest.raises(ToolError, match=r"^It is wrong: "):
            await environment.step(act())
        assert (await environment.step(act())).text == "ok"


async def test_an_error_of_the_environment_is_its_fault() -> None:
    async with begun(answering("EXECUTION_ERROR", "ok")) as (environment, _):
        with pytest.raises(EnvironmentFault, match=r"\.step raised the reason$"):
            await environment.step(act())
        with pytest.raises(SessionLost, match="no step, step failed in the environment"):
            await environment.step(act())


@pytest.mark.parametrize("code", ["SESSION_ERROR", "FACTORY_ERROR", "UNKNOWN_TYPE", "NEW_ONE"])
async def test_an_error_of_the_session_is_infrastructure(code: str) -> None:
    async with begun(answering(code)) as (environment, _):
        with pytest.raises(SessionLost, match=rf"step failed at the server: the reason \({code}\)"):
            await environment.step(act())


async def test_a_refused_reset_is_the_configurations_fault() -> None:
    async def refuses(peer: Peer) -> None:
        await peer.ask()
        await peer.answer("state")
        await peer.ask()
        await peer.error("VALIDATION_ERROR", errors=[{"loc": ["seed"], "msg": "No."}])
        await peer.ask()

    async with serving(refuses) as server, client(server) as factory:
        environment = await factory.open()
        with pytest.raises(EnvironmentFault, match=r"reset refused: The argument 'seed' is wrong"):
            await environment.reset(SAMPLE, 0)
        await environment.close()


async def test_what_cannot_be_written_as_json_leaves_the_session_in_order() -> None:
    async with serving() as server, client(server) as factory:
        environment = await factory.open()
        await environment.reset(SAMPLE, 0)
        with pytest.raises(EnvironmentFault, match="cannot be written as JSON"):
            await environment.step(act(value=float("nan")))
        assert (await environment.step(act())).text == "go 1"
        await environment.close()


# --- getting in -------------------------------------------------------------------------------


class Full:
    """Allows so many sessions, and refuses the others as a version of OpenEnv does."""

    def __init__(self, room: int, way: str) -> None:
        self.room, self.way, self.live, self.most, self.refused = room, way, 0, 0, 0

    async def __call__(self, peer: Peer) -> None:
        if self.live >= self.room:
            self.refused += 1
            if self.way == "error":
                await peer.error("CAPACITY_REACHED", "2 sessions at most")
            return
        self.live += 1
        self.most = max(self.most, self.live)
        try:
            await playing(peer)
        finally:
            self.live -= 1


@pytest.mark.parametrize("way", ["error", "close"])
async def test_a_full_server_makes_the_others_wait(way: str) -> None:
    full, told = Full(2, way), []
    watch = Watch(told.append)

    async def episode(number: int) -> str:
        environment = await factory.open()
        try:
            await environment.reset(SAMPLE, 0)
            await asyncio.sleep(0.01)
            return (await environment.step(act(f"n{number}"))).text
        finally:
            await environment.close()

    async with serving(full) as server, client(server, seconds={"open": 20}, watch=watch) as made:
        factory = made
        texts = await asyncio.gather(*(episode(number) for number in range(12)))
        await until(lambda: server.live == 0)
    assert texts == [f"n{number} 1" for number in range(12)]
    assert full.most == 2
    assert 1 <= watch.counts["waits_for_capacity"] <= 12
    assert len(told) == 1
    assert "the environment server is full" in told[0]
    assert server.connections < 60  # only the first in line knocks


async def test_a_server_that_stays_full_is_a_failure_at_the_deadline() -> None:
    async with (
        serving(Full(0, "error")) as server,
        client(server, seconds={"open": 0.4}) as factory,
    ):
        opened = await asyncio.gather(*(factory.open() for _ in range(3)), return_exceptions=True)
        await until(lambda: server.live == 0)
    for failure in opened:
        assert isinstance(failure, InfrastructureFailure)
        assert "no session within env.open_timeout = 0.4 s; it is full" in str(failure)


async def test_an_environment_that_cannot_tell_its_state_is_there() -> None:
    async def shy(peer: Peer) -> None:
        await peer.ask()
        await peer.error("EXECUTION_ERROR", "'Shy' object has no attribute 'count'")
        await playing(peer)

    async with serving(shy) as server, client(server) as factory:
        environment = await factory.open()
        assert await environment.reset(SAMPLE, 0) == "reset 7"
        await environment.close()


async def test_a_server_that_cannot_make_an_environment() -> None:
    async def fails(peer: Peer) -> None:
        await peer.error("FACTORY_ERROR", "no licence")

    async with serving(fails) as server, client(server) as factory:
        with pytest.raises(InfrastructureFailure, match=r"open failed .*no licence \(FACTORY_ERRO"):
            await factory.open()
        await until(lambda: server.live == 0)


async def test_a_server_that_never_answers() -> None:
    async def silent(peer: Peer) -> None:
        await peer.ask()
        assert (await peer.ask())["type"] == "gone"

    async with serving(silent) as server, client(server, seconds={"open": 0.1}) as factory:
        with pytest.raises(InfrastructureFailure, match=r"no session within .*; it does not answ"):
            await factory.open()
        await until(lambda: server.live == 0)


async def test_the_check_before_a_run() -> None:
    async with serving() as server:
        await RemoteFactory(server.url + "/", Words()).check()
        assert server.connections == 0
        with pytest.raises(MtrlError, match=r"^env.base_url: .*/other is no OpenEnv server \(/sch"):
            await RemoteFactory(f"{server.url}/other", Words()).check()
        address = server.url.replace("http://", "http://me:secret@")
        await RemoteFactory(address, Words()).check()
    with pytest.raises(
        MtrlError, match=r"^env.base_url: http://127.*cannot be reached: "
    ) as caught:
        await RemoteFactory(address, Words()).check()
    assert "secret" not in str(caught.value)
    factory = RemoteFactory(address, Words())
    with pytest.raises(InfrastructureFailure, match=r"^http://127\.0\.0\.1:\d+: ") as lost:
        await factory.open()
    await factory.close()
    assert "secret" not in str(lost.value)
    with pytest.raises(UsageError, match="lacks reset_arguments"):
        RemoteFactory(server.url, object())  # type: ignore[arg-type]
    assert without_password("https://a:b@host/p") == "https://host/p"
