"""A task in YAML alone, and one whose tools the environment lists."""

from contextlib import AsyncExitStack
from typing import Any

import pytest

from mtrl_cli.envs.interface import Rules, TaskEnvironment, Watch
from mtrl_cli.envs.openenv import OpenEnvFactory
from mtrl_cli.envs.openenv_remote import RemoteFactory
from mtrl_cli.envs.openenv_served import ServedEnvironments
from mtrl_cli.envs.tools import offered_tools, takes_tools
from mtrl_cli.errors import MtrlError, UsageError
from mtrl_cli.rollout.ports import EnvironmentFault, StepOutcome, ToolCall, ToolError
from mtrl_cli.rollout.resources import RolloutResources
from mtrl_cli.tasks.declared import DeclaredTask
from mtrl_cli.tasks.load import load_task

DECLARED = "mtrl_cli.tasks.declared:DeclaredTask"
PLACE: dict[str, Any] = {
    "name": "place",
    "description": "Put a mark.",
    "properties": {"cell": {"type": "integer"}, "why": {"type": "string"}},
    "optional": ["why"],
}


def declared(**params: Any) -> DeclaredTask:
    task = load_task(DECLARED, "t", -1.0, {"tools": [PLACE], **params})
    assert isinstance(task, DeclaredTask)
    return task


def test_its_words() -> None:
    task = declared(system="Play.", prompt="See: {observation}", references={"random": 0.25})
    assert task.sample(5) == task.sample(5)
    assert task.messages(task.sample(5), "{b}") == [
        {"role": "system", "content": "Play."},
        {"role": "user", "content": "See: {b}"},
    ]
    assert list(declared().messages(task.sample(5), "x")) == [{"role": "user", "content": "x"}]
    function = task.tools[0]["function"]
    assert function["parameters"]["required"] == ["cell"]
    assert function["parameters"]["additionalProperties"] is False
    assert task.references == {"random": 0.25}
    assert not takes_tools(task)


def test_a_call_becomes_the_fields_that_are_declared() -> None:
    fields = {
        "action_id": "{cell}",
        "note": "cell {cell}, {why}",
        "game": "tic_tac_toe",
        "turn": 3,
        "mark": {"from": "cell", "values": {0: "first", 1: "second"}},
    }
    task = declared(actions={"place": fields})
    assert task.action(ToolCall("place", {"cell": 1, "why": "so"})) == {
        "action_id": 1,
        "note": "cell 1, so",
        "game": "tic_tac_toe",
        "turn": 3,
        "mark": "second",
    }
    with pytest.raises(ToolError, match="The argument 'cell' is none of 0, 1"):
        task.action(ToolCall("place", {"cell": 7}))
    assert declared().action(ToolCall("place", {"cell": 1})) == {"cell": 1}


def test_reset_is_given_the_seed_and_what_is_declared() -> None:
    sample = declared().sample(5)
    assert declared().reset_arguments(sample, 2) == {"seed": 5}
    task = declared(reset={"level": "hard"}, members_differ=True)
    assert task.reset_arguments(sample, 2) == {"seed": 5, "member": 2, "level": "hard"}


def test_what_the_model_reads() -> None:
    seen = {"board": "x.o", "player": {"cards": ["A", "K"]}, "v": [0, 1.0, 1, 0, 0, 1], "n": 0.5}
    task = declared(
        observation="{board} {player.cards} {player.cards.1} {n} {set} {named} {unknown",
        features={
            "set": {"of": "v", "between": [1, 6], "count": True, "add": -1},
            "named": {"of": "v", "between": [0, 6], "names": ["a", "b", "c"]},
        },
    )
    assert task.observation_text(seen) == 'x.o ["A", "K"] K 0.5 2 b c c {unknown'
    assert declared().observation_text({"a": [1], "b": "ü"}) == '{"a": [1], "b": "ü"}'
    with pytest.raises(EnvironmentFault, match="no field 'board': the observation has v, player"):
        task.observation_text({"v": [0] * 6, "player": {"cards": [1, 2]}, "n": 1})
    with pytest.raises(UsageError) as wrong:  # the first one that is read
        declared(observation="{player.name}").observation_text(seen)
    told = "task.params.observation: there is no field 'player.name': 'player' has cards"
    assert str(wrong.value) == told
    lacking = declared(features={"f": {"of": "w", "between": [0, 1], "count": True}})
    with pytest.raises(UsageError, match=r"task\.params\.features: there is no field 'w': "):
        lacking.observation_text(seen)
    with pytest.raises(ValueError, match="v has 2 entries; a feature wants 6"):
        task.observation_text({**seen, "v": [0, 1]})


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"tools": []}, "task.params.tools: write a list of tools, or mcp"),
        ({"tools": "none"}, "task.params.tools: write a list of tools, or mcp"),
        ({"tools": [{"description": "x"}]}, "task.params.tools: write name, description"),
        ({"tools": [{**PLACE, "args": 1}]}, "task.params.tools: write name, description"),
        ({"tools": [{**PLACE, "optional": ["x"]}]}, "task.params.tools: write name, description"),
        ({"actions": {"plaice": {}}}, "tools that exist, which plaice does not"),
        ({"features": {"f": {"of": "v", "between": [3, 1], "count": True}}}, r"features\.f: write"),
        ({"features": {"f": {"of": "v", "between": [0, 1]}}}, r"features\.f: write"),
        ({"features": {"f": {"between": [0, 1], "count": True}}}, r"features\.f: write"),
        ({"feature": {}}, "its parameters are those of task.params"),
    ],
)
def test_declarations_that_cannot_mean_anything(params: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_task(DECLARED, "t", -1.0, {"tools": [PLACE], **params})


# --- MCP --------------------------------------------------------------------------------------

SAFE = "tests.envs.mcp_world:Safe"


async def play_the_safe(factory: Any) -> None:
    task = declared(tools="mcp")
    assert takes_tools(task)
    task.take_tools(await offered_tools(factory, RolloutResources()))
    names = [tool["function"]["name"] for tool in task.tools]
    assert names == ["add", "turn"]
    add = task.tools[0]["function"]
    assert add["description"] == "Add two numbers."
    assert add["parameters"]["properties"]["a"]["type"] == "integer"
    assert set(add["parameters"]["required"]) == {"a", "b"}

    opened = await factory.open()
    environment = TaskEnvironment(opened.session, task, "Safe", Rules(), Watch())
    await environment.reset(task.sample(21), 0)
    assert await environment.step(ToolCall("add", {"a": 21, "b": 21})) == StepOutcome(
        "42", 0.0, False
    )
    wrong = await environment.step(ToolCall("turn", {"number": 41}))
    assert wrong == StepOutcome("Nothing.", 0.0, False)
    refused = await environment.step(ToolCall("add", {"a": "much", "b": 1}))
    assert refused.text.startswith("Error: ")
    right = await environment.step(ToolCall("turn", {"number": 42}))
    assert right == StepOutcome("It opens.", 1.0, True)
    await environment.close()


async def test_tools_that_an_environment_lists_embedded() -> None:
    factory = OpenEnvFactory(SAFE, declared(tools="mcp"))
    await play_the_safe(factory)
    await factory.close()


@pytest.mark.long
async def test_tools_that_an_environment_lists_behind_a_server() -> None:
    server = ServedEnvironments(app=None, entrypoint=SAFE, params={}, concurrency=2, log=None)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(server)
        factory = RemoteFactory(server.url, declared(tools="mcp"))
        stack.push_async_callback(factory.close)
        await play_the_safe(factory)


async def test_an_environment_that_lists_none() -> None:
    task = declared(tools="mcp")
    with pytest.raises(UsageError, match="the environment lists no tools"):
        task.take_tools({"tools": []})
    factory = OpenEnvFactory("mtrl_cli.tasks.blackjack.env:BlackjackEnvironment", task)
    with pytest.raises(MtrlError, match="the environment does not list its tools: The argument"):
        await offered_tools(factory, RolloutResources())
    await factory.close()
