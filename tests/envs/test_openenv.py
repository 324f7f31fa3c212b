"""The OpenEnv backend: attribution of failures, latched ends, deadlines, threads, release."""

import asyncio
import gc
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from mtrl_cli.envs.interface import Deadlines, TaskEnvironment, Watch
from mtrl_cli.envs.openenv import OpenEnvFactory
from mtrl_cli.errors import UsageError
from mtrl_cli.light_import import light_packages
from mtrl_cli.rollout.ports import (
    EnvironmentFault,
    InfrastructureFailure,
    StepOutcome,
    TaskSample,
    ToolCall,
    ToolError,
)

light_packages("openenv", "openenv.core", "openenv.core.env_server")

from tests.envs import worlds  # noqa: E402

SAMPLE = TaskSample("s", seed=7)


class Adapter:
    def reset_arguments(self, sample: TaskSample, member: int) -> Mapping[str, Any]:
        return {"seed": sample.seed, "member": member}

    def action(self, call: ToolCall) -> Mapping[str, Any]:
        if call.name == "stumble":
            raise KeyError("no action for it")
        return {"do": call.name, **call.arguments}

    def observation_text(self, observation: Mapping[str, Any]) -> str:
        assert set(observation) == {"text"}
        return str(observation["text"])


@pytest.fixture(autouse=True)
def _fresh() -> None:
    for world in vars(worlds).values():
        if isinstance(world, type) and issubclass(world, worlds.Counter):
            world.forget()


def factory(world: str = "Counter", adapter: Any = None, **options: Any) -> OpenEnvFactory:
    """Options that end in ``_timeout`` are deadlines."""
    given = {
        name.removesuffix("_timeout"): options.pop(name)
        for name in list(options)
        if name.endswith("_timeout")
    }
    return OpenEnvFactory(
        f"tests.envs.worlds:{world}", adapter or Adapter(), deadlines=Deadlines(**given), **options
    )


@asynccontextmanager
async def opened(world: str = "Counter", **options: Any) -> AsyncIterator[TaskEnvironment]:
    made = factory(world, **options)
    instance = await made.open()
    await instance.reset(SAMPLE, 0)
    yield instance
    await instance.close()
    await made.close()


def go(do: str = "go", **arguments: Any) -> ToolCall:
    return ToolCall(do, arguments)


# --- an episode -------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [0, 1, 4])
async def test_an_episode(threads: int) -> None:
    made = factory(threads=threads)
    instance = await made.open()
    assert await instance.reset(SAMPLE, 3) == "seed 7 member 3"
    assert await instance.step(go(value=0.5)) == StepOutcome("step 1", 0.5, False)
    assert await instance.step(go("end", value=-1.0)) == StepOutcome("over", -1.0, True)
    await instance.close()
    await made.close()
    assert (worlds.Counter.live, worlds.Counter.closed) == (0, 1)


async def test_no_reward_is_zero_and_a_bool_is_a_number() -> None:
    async with opened() as instance:
        assert (await instance.step(go())).reward == 0.0
    async with opened("BadReward") as instance:
        assert (await instance.step(go("true"))).reward == 1.0


async def test_the_end_is_latched_until_the_next_reset() -> None:
    async with opened() as instance:
        await instance.step(go("end"))
        with pytest.raises(EnvironmentFault, match="step after the end of the episode"):
            await instance.step(go())
        await instance.reset(SAMPLE, 1)
        assert (await instance.step(go())).text == "step 1"


async def test_a_step_before_reset_is_refused() -> None:
    made = factory()
    instance = await made.open()
    with pytest.raises(EnvironmentFault, match="step before reset"):
        await instance.step(go())
    await instance.close()
    await made.close()


async def test_what_reset_does_not_take_is_dropped_and_said_once() -> None:
    told: list[str] = []
    watch = Watch(told.append)
    async with opened("Seedless", watch=watch) as instance:
        assert await instance.reset(SAMPLE, 1) == "always"
    assert watch.counts == {"reset_arguments_dropped": 2}
    assert told == ["Seedless.reset does not take member, seed"]


@pytest.mark.parametrize("world", ["Waiting", "PlainCoroutines"])
async def test_asynchronous_environments_run_on_the_loop(world: str) -> None:
    async with opened(world) as instance:
        outcome = await instance.step(go())
        assert outcome.text in ("waited", "awaited")
    async with opened("Waiting") as instance:
        assert (await instance.step(go("end"))).done
        with pytest.raises(EnvironmentFault, match="after the end"):
            await instance.step(go())


async def test_the_action_class_comes_from_the_generic_base() -> None:
    async with opened("ByGeneric") as instance:
        assert (await instance.step(go())).text == "Move"


PLACE = r" \(.*\.py:\d+\)$"
"""Of the line that raised."""


# --- attribution ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("world", "do", "message"),
    [
        ("Counter", "raise", r"^Counter.step raised ZeroDivisionError: by nothing" + PLACE),
        ("Counter", "exit", r"^Counter.step raised SystemExit: 3" + PLACE),
        ("Counter", "stumble", r"^Adapter.action raised KeyError: 'no action for it'" + PLACE),
        ("Counter", "text", r"^Counter.step returned str, not an Observation" + PLACE),
        ("BadReward", "nan", r"^BadReward returned the reward nan, which is not finite$"),
        ("BadReward", "word", r"^BadReward returned the reward 'high', not a number$"),
        ("BadReward", "list", r"^BadReward returned the reward \[1\], not a number$"),
        ("Waiting", "timeout", r"^Waiting.step raised TimeoutError: its own" + PLACE),
    ],
)
async def test_the_environments_faults_are_its_own(world: str, do: str, message: str) -> None:
    async with opened(world) as instance:
        with pytest.raises(EnvironmentFault, match=message):
            await instance.step(go(do))


async def test_infinite_rewards_are_refused() -> None:
    async with opened() as instance:
        with pytest.raises(EnvironmentFault, match="the reward inf"):
            await instance.step(go(value=float("inf")))


async def test_a_fault_in_reset() -> None:
    async with opened() as instance:
        with pytest.raises(
            EnvironmentFault, match=r"^Counter.reset raised LookupError: no such member" + PLACE
        ):
            await instance.reset(SAMPLE, 99)


async def test_wrong_values_and_refusals_go_to_the_model_and_the_episode_goes_on() -> None:
    async with opened() as instance:
        with pytest.raises(ToolError, match="The argument 'value' is wrong"):
            await instance.step(go(value="much"))
        with pytest.raises(ToolError, match="You cannot do that now"):
            await instance.step(go("refuse"))
        assert (await instance.step(go())).text == "step 2"


async def test_an_instance_that_cannot_be_had_is_infrastructure() -> None:
    made = factory("FailsToOpen")
    with pytest.raises(InfrastructureFailure, match=r"FailsToOpen\.open raised OSError: no room"):
        await made.open()
    await made.close()


# --- deadlines --------------------------------------------------------------------------------


async def test_a_step_past_its_deadline_kills_the_instance_and_only_that() -> None:
    made = factory("Wanderer", threads=1, step_timeout=0.2, close_timeout=0.2)
    stuck, other = await made.open(), await made.open()
    await stuck.reset(SAMPLE, 0)
    await other.reset(SAMPLE, 1)
    begun = time.monotonic()
    hanging = asyncio.create_task(stuck.step(go("hang")))
    await asyncio.sleep(0)
    behind = asyncio.create_task(other.step(go()))  # waits on the same thread
    with pytest.raises(InfrastructureFailure, match=r"step passed its deadline of 0\.2 s"):
        await hanging
    assert time.monotonic() - begun < 1.0
    assert (await behind).text == "step 1"  # on a fresh thread; its own clock had not started
    with pytest.raises(InfrastructureFailure, match="no step, step passed its deadline"):
        await stuck.step(go())
    with pytest.raises(InfrastructureFailure, match="no reset, step passed its deadline"):
        await stuck.reset(SAMPLE, 0)
    with pytest.raises(InfrastructureFailure, match="is closed when the thread comes back"):
        await stuck.close()
    assert worlds.Wanderer.closed == 0
    await other.close()
    with pytest.raises(InfrastructureFailure, match=r"1 Wanderer instance\(s\) never came back"):
        await made.close()
    worlds.Wanderer.release.set()
    await until(lambda: worlds.Wanderer.closed == 2)
    assert worlds.Wanderer.live == 0


async def test_a_deadline_counts_from_the_start_of_the_step() -> None:
    made = factory(threads=1, step_timeout=0.3)
    instances = [await made.open() for _ in range(4)]
    for instance in instances:
        await instance.reset(SAMPLE, 0)
    outcomes = await asyncio.gather(*(i.step(go("sleep", value=0.15)) for i in instances))
    assert [outcome.text for outcome in outcomes] == ["step 1"] * 4
    for instance in instances:
        await instance.close()
    await made.close()


async def test_a_hanging_open_is_reported_and_closed_later() -> None:
    made = factory("HangsToOpen", open_timeout=0.1, close_timeout=0.1)
    with pytest.raises(InfrastructureFailure, match=r"open passed its deadline of 0\.1 s"):
        await made.open()
    worlds.HangsToOpen.release.set()
    await until(lambda: worlds.HangsToOpen.live == 0 and worlds.HangsToOpen.closed == 1)
    await made.close()


async def test_an_asynchronous_step_past_its_deadline() -> None:
    async with opened("Waiting", step_timeout=0.05) as instance:
        with pytest.raises(InfrastructureFailure, match=r"step passed its deadline of 0\.05 s"):
            await instance.step(go(value=5.0))
        with pytest.raises(InfrastructureFailure, match="no step, step passed its deadline"):
            await instance.step(go())
    assert worlds.Waiting.live == 0


async def test_environments_of_one_thread_fall_with_it() -> None:
    made = factory("Alone", threads=4, step_timeout=0.1, close_timeout=0.1)
    stuck, other = await made.open(), await made.open()
    await stuck.reset(SAMPLE, 0)
    await other.reset(SAMPLE, 0)
    with pytest.raises(InfrastructureFailure):
        await stuck.step(go("hang"))
    with pytest.raises(InfrastructureFailure):
        await other.step(go())
    worlds.Alone.release.set()
    await stuck.close()
    await other.close()
    await made.close()
    assert worlds.Alone.live == 0


async def until(condition: Any) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


# --- ownership --------------------------------------------------------------------------------


async def test_an_instance_stays_on_its_thread_under_load() -> None:
    made = factory(threads=3)

    async def episode(member: int) -> int:
        instance = await made.open()
        await instance.reset(SAMPLE, member)
        for _ in range(10):
            outcome = await instance.step(go())  # `Counter` raises on another thread
        await instance.close()
        return int(outcome.text.split()[1])

    assert await asyncio.gather(*(episode(member) for member in range(60))) == [10] * 60
    await made.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "env-Counter"]
    assert (worlds.Counter.live, worlds.Counter.closed) == (0, 60)


async def test_close_after_a_cancelled_step_waits_for_the_step() -> None:
    made = factory()
    instance = await made.open()
    await instance.reset(SAMPLE, 0)
    step = asyncio.create_task(instance.step(go("sleep", value=0.2)))
    await asyncio.sleep(0.05)
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    with pytest.raises(InfrastructureFailure, match="no step, step was cancelled"):
        await instance.step(go())
    assert worlds.Counter.live == 1
    await instance.close()
    assert worlds.Counter.live == 0
    await made.close()


async def test_a_cancelled_open_leaks_nothing() -> None:
    made = factory("HangsToOpen")
    opening = asyncio.create_task(made.open())
    await until(lambda: worlds.HangsToOpen.live == 1)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    worlds.HangsToOpen.release.set()
    await until(lambda: worlds.HangsToOpen.live == 0)
    await made.close()


async def test_close_is_idempotent_also_at_the_same_time() -> None:
    made = factory()
    instance = await made.open()
    await asyncio.gather(instance.close(), instance.close())
    await instance.close()
    assert worlds.Counter.closed == 1
    with pytest.raises(InfrastructureFailure, match="no reset, it is closed"):
        await instance.reset(SAMPLE, 0)
    await made.close()


async def test_a_failing_close_is_reported_to_each_caller() -> None:
    made = factory("FailsToClose")
    instance = await made.open()
    for _ in range(2):
        with pytest.raises(InfrastructureFailure, match="close raised OSError: still in use"):
            await instance.close()
    assert worlds.FailsToClose.closed == 1
    await made.close()


async def test_a_closed_environment_is_not_kept_alive() -> None:
    import weakref

    made = factory(threads=1)
    instance = await made.open()
    seen = weakref.ref(instance.session._environment)  # type: ignore[attr-defined]
    await instance.close()
    gc.collect()
    assert seen() is None
    await made.close()


# --- start-up ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("world", "message"),
    [
        ("NoEnvironment", "it is not an OpenEnv environment; derive it from openenv"),
        ("Half", "it lacks state, step"),
        ("Unsaid", "it does not say which actions it takes; annotate step"),
        ("Countre", "did you mean 'Counter'"),
    ],
)
def test_a_wrong_class_is_refused_in_one_line(world: str, message: str) -> None:
    with pytest.raises(
        UsageError, match=rf"^env.entrypoint 'tests.envs.worlds:{world}': .*{message}"
    ):
        factory(world)


def test_a_task_without_the_adapters_methods_is_refused() -> None:
    with pytest.raises(
        UsageError, match="'object' lacks reset_arguments, action, observation_text"
    ):
        factory(adapter=object())


def test_the_action_class_comes_from_the_annotation() -> None:
    assert factory("Annotated").read_action.action_class is worlds.Move


def run_apart(code: str) -> None:
    """In a process of its own, where nothing is imported yet."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_blackjack_loads_without_openenvs_server() -> None:
    run_apart("""
import sys
from mtrl_cli.envs.openenv import OpenEnvFactory
from mtrl_cli.tasks.blackjack.task import Blackjack
OpenEnvFactory("mtrl_cli.tasks.blackjack.env:BlackjackEnvironment", Blackjack())
heavy = {"fastapi", "gradio", "fastmcp", "openai"} & set(sys.modules)
assert not heavy, heavy
""")


@pytest.mark.long
def test_blackjack_behind_openenvs_own_server_plays_the_same_game() -> None:
    run_apart("""
from mtrl_cli.envs.openenv import OpenEnvFactory
from mtrl_cli.tasks.blackjack.task import Blackjack
OpenEnvFactory("mtrl_cli.tasks.blackjack.env:BlackjackEnvironment", Blackjack())
from openenv.core.env_server import create_app, Environment
from openenv.core.env_server.interfaces import Environment as same
from mtrl_cli.tasks.blackjack.env import *
assert Environment is same
app = create_app(BlackjackEnvironment, BlackjackAction, BlackjackObservation, max_concurrent_envs=4)
from fastapi.testclient import TestClient
with TestClient(app).websocket_connect("/ws") as socket:
    socket.send_json({"type": "reset", "data": {"seed": 3, "member": 2}})
    text = socket.receive_json()["data"]["observation"]["text"]
    socket.send_json({"type": "step", "data": {"action": "stand"}})
    final = socket.receive_json()["data"]
    assert final["done"] and final["reward"] in (-1.0, 0.0, 1.0), final
here = BlackjackEnvironment()
assert here.reset(seed=3, member=2).text == text
assert here.step(BlackjackAction(action="stand")).text == final["observation"]["text"]
""")
