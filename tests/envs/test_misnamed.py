"""A field of an action that its class does not take: the task's mistake where no call could have
said it otherwise, the model's where one could."""

from collections.abc import Mapping
from typing import Any

import pytest

from mtrl_cli.envs.openenv import OpenEnvFactory
from mtrl_cli.foreign import line
from mtrl_cli.light_import import light_packages
from mtrl_cli.rollout.ports import TaskSample, ToolCall, ToolError
from mtrl_cli.rollout.task_fault import TaskFault

light_packages("openenv", "openenv.core", "openenv.core.env_server")

from openenv.core.env_server.interfaces import Environment  # noqa: E402
from openenv.core.env_server.types import Action, Observation, State  # noqa: E402
from pydantic import ValidationError  # noqa: E402


class Turned(Action):
    degrees: int
    slowly: bool = False


class Seen(Observation):
    text: str


class Knob(Environment[Turned, Seen, State]):
    def reset(self, seed: int | None = None, **_: Any) -> Seen:
        return Seen(text="a knob")

    def step(self, action: Turned, **_: Any) -> Seen:
        return Seen(text=f"{action.degrees}", reward=1.0, done=True)

    @property
    def state(self) -> State:
        return State()


class Turning:
    """A task whose tool has an argument for each of ``properties``."""

    name, unfinished_reward = "turning", 0.0

    def __init__(self, action: Any, *properties: str) -> None:
        schema = {"type": "object", "properties": {key: {} for key in properties}}
        self.tools = [{"type": "function", "function": {"name": "turn", "parameters": schema}}]
        self._action = action

    def reset_arguments(self, sample: TaskSample, member: int) -> Mapping[str, Any]:
        return {"seed": sample.seed}

    def action(self, call: ToolCall) -> Mapping[str, Any]:
        fields: Mapping[str, Any] = self._action(dict(call.arguments))
        return fields

    def observation_text(self, observation: Mapping[str, Any]) -> str:
        return str(observation["text"])


async def stepped(task: Turning, **arguments: Any) -> None:
    factory = OpenEnvFactory(f"{__name__}:Knob", task)
    environment = await factory.open()
    try:
        await environment.reset(TaskSample("s", 7), 0)
        await environment.step(ToolCall("turn", arguments))
    finally:
        await environment.close()
        await factory.close()


THE_TASKS = {
    "a field that no call has said": (
        Turning(lambda said: {"degree": said["degrees"]}, "degrees"),
        {"degrees": 3},
        "'degree' is no field of it, its field 'degrees' is missing",
    ),
    "a tool's argument that the class does not have": (
        Turning(lambda said: said, "degree"),
        {"degree": 3},
        "'degree' is no field of it, its field 'degrees' is missing",
    ),
    "a field that the tool has no argument for": (
        Turning(lambda said: said, "slowly"),
        {"slowly": True},
        "its field 'degrees' is missing",
    ),
    "an argument that is lost on the way": (
        Turning(lambda said: {}, "degrees"),
        {"degrees": 3},
        "its field 'degrees' is missing",
    ),
}
THE_MODELS = {
    "an argument that it left out": (Turning(lambda said: said, "degrees"), {}),
    "one that the field is made of": (
        Turning(lambda said: {"degrees": said["by"]} if "by" in said else {}, "by"),
        {},
    ),
    "a value of the wrong kind": (Turning(lambda said: said, "degrees"), {"degrees": "x"}),
    "an argument that it made up": (
        Turning(lambda said: said, "degrees"),
        {"degrees": 3, "faster": 1},
    ),
}


@pytest.mark.parametrize("case", THE_TASKS)
async def test_what_no_call_could_have_said_is_the_tasks_fault(case: str) -> None:
    task, arguments, told = THE_TASKS[case]
    with pytest.raises(TaskFault) as fault:
        await stepped(task, **arguments)
    place = f"{__file__}:{Turning.action.__code__.co_firstlineno}"
    assert str(fault.value) == f"Turning.action returned no action of Knob: {told} ({place})"
    assert "ValidationError" in fault.value.trace


@pytest.mark.parametrize("case", THE_MODELS)
async def test_what_the_model_has_said_is_answered(case: str) -> None:
    task, arguments = THE_MODELS[case]
    with pytest.raises(ToolError, match=r"^The argument "):
        await stepped(task, **arguments)


def test_of_pydantics_findings_the_first_is_told() -> None:
    with pytest.raises(ValidationError) as raised:
        Seen(txt="a knob")  # type: ignore[call-arg]
    assert line(raised.value) == "2 validation errors for Seen: text: Field required"
