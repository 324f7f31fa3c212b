"""Environments whose own code does what code should not: what it raises, wherever it raises it, is
its fault, told in one line, and never ends the run, passes for a cancellation, or hangs."""

import asyncio
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from mtrl_cli.envs.interface import Deadlines
from mtrl_cli.envs.openenv import OpenEnvFactory
from mtrl_cli.light_import import light_packages
from mtrl_cli.rollout.ports import EnvironmentFault, InfrastructureFailure, TaskSample, ToolCall

light_packages("openenv", "openenv.core", "openenv.core.env_server")

from openenv.core.env_server.interfaces import Environment  # noqa: E402
from openenv.core.env_server.types import Action, Observation, State  # noqa: E402

SAMPLE = TaskSample("s", seed=7)


class Move(Action):
    do: str = "go"


class Seen(Observation):
    text: str = "x"


class Speechless(Exception):  # noqa: N818
    def __str__(self) -> str:
        raise RuntimeError("no words")


class TwoNumbers:
    """As a tensor of two elements."""

    def __float__(self) -> float:
        raise RuntimeError("cannot be converted to a scalar")

    def __repr__(self) -> str:
        raise RuntimeError("too large to print")


def misbehave(how: str) -> Any:
    match how:
        case "stop":
            return next(iter(()))
        case "speechless":
            raise Speechless
        case "exit":
            sys.exit(3)
        case "cancel":
            raise asyncio.CancelledError
        case "group":
            raise BaseExceptionGroup("two", [SystemExit(1)])
        case "class":
            return Seen
        case "reward":
            return Seen.model_construct(text="x", done=False, reward=TwoNumbers(), metadata={})
        case "done":
            return Seen.model_construct(text="x", done=TwoNumbers(), reward=0.0, metadata={})
    return Seen()


class Rogue(Environment):
    action_class = Move

    def __init__(self, opening: str = "", closing: str = "") -> None:
        super().__init__()
        self.closing = closing
        misbehave(opening)

    def reset(self, seed: Any = None, episode_id: Any = None, how: str = "", **_: Any) -> Any:
        return misbehave(how)

    def step(self, action: Move, timeout_s: float | None = None, **_: Any) -> Any:
        return misbehave(action.do)

    @property
    def state(self) -> State:
        return State()

    def close(self) -> None:
        misbehave(self.closing)


class AsyncRogue(Rogue):
    async def reset_async(self, seed: Any = None, episode_id: Any = None, **given: Any) -> Any:
        return self.reset(**given)

    async def step_async(self, action: Move, timeout_s: float | None = None, **_: Any) -> Any:
        return self.step(action)


class Adapter:
    def __init__(self, how: str) -> None:
        self.how = how

    def reset_arguments(self, sample: TaskSample, member: int) -> Mapping[str, Any]:
        return {"how": self.how}

    def action(self, call: ToolCall) -> Mapping[str, Any]:
        return {"do": call.name}

    def observation_text(self, observation: Mapping[str, Any]) -> str:
        return str(observation["text"])


RAISES = {
    "stop": "StopIteration",  # inside a coroutine it becomes a RuntimeError
    "speechless": r"Speechless: \(no message\)",
    "exit": "SystemExit: 3",
    "cancel": "CancelledError",
    "group": "BaseExceptionGroup",
}
RETURNS = {
    "class": "raised TypeError",  # the observation's class, where an observation belongs
    "reward": r"returned the reward \(an object of TwoNumbers\), not a number",
    "done": r"returned \(an object of TwoNumbers\) for done",
}
KINDS = [("Rogue", 2), ("Rogue", 0), ("AsyncRogue", 2)]


def factory(kind: str, threads: int, how: str = "", **params: Any) -> OpenEnvFactory:
    return OpenEnvFactory(
        f"{__name__}:{kind}",
        Adapter(how),
        threads=threads,
        params=params,
        deadlines=Deadlines(20.0, 20.0, 20.0, 20.0),
    )


@pytest.mark.parametrize(("kind", "threads"), KINDS)
@pytest.mark.parametrize(("how", "told"), [*RAISES.items(), *RETURNS.items()])
async def test_in_reset_and_in_step_it_is_the_environments_fault(
    kind: str, threads: int, how: str, told: str
) -> None:
    async with asyncio.timeout(15):  # a result that is never delivered would hang past it
        made = factory(kind, threads, how)
        environment = await made.open()
        with pytest.raises(EnvironmentFault, match=told):
            await environment.reset(SAMPLE, 0)
        await environment.close()
        await made.close()

        made = factory(kind, threads)
        environment = await made.open()
        await environment.reset(SAMPLE, 0)
        with pytest.raises(EnvironmentFault, match=told):
            await environment.step(ToolCall(how, {}))
        await environment.close()
        await made.close()


@pytest.mark.parametrize(("kind", "threads"), KINDS)
@pytest.mark.parametrize(("how", "told"), RAISES.items())
async def test_where_it_is_made_and_closed_it_is_infrastructure(
    kind: str, threads: int, how: str, told: str
) -> None:
    async with asyncio.timeout(15):
        made = factory(kind, threads, opening=how)
        with pytest.raises(InfrastructureFailure, match=rf"{kind}.open raised .*{told}"):
            await made.open()
        await made.close()

        made = factory(kind, threads, closing=how)
        environment = await made.open()
        with pytest.raises(InfrastructureFailure, match=rf"{kind}.close raised .*{told}"):
            await environment.close()
        await made.close()


async def test_an_episode_that_is_over_at_its_start_is_no_episode() -> None:
    class Over(Rogue):
        def reset(self, seed: Any = None, episode_id: Any = None, how: str = "", **_: Any) -> Any:
            return Seen(done=True, reward=1.0)

    made = factory("Rogue", 1)
    made.environment_class = Over
    environment = await made.open()
    with pytest.raises(EnvironmentFault, match="reset returned an episode that is over"):
        await environment.reset(SAMPLE, 0)
    await environment.close()
    await made.close()
