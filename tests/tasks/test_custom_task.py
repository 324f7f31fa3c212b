"""The example of docs/custom-task.md is complete, and does what the page says."""

import re
from pathlib import Path

import pytest

from mtrl_cli.chat.renderer import RendererChat
from mtrl_cli.chat.tokenizer import load_tokenizer
from mtrl_cli.envs.openenv import OpenEnvFactory
from mtrl_cli.rollout.ports import ToolCall, ToolError
from mtrl_cli.tasks.load import load_task

PAGE = Path(__file__).parents[2] / "docs/custom-task.md"


async def test_the_example_plays(tmp_path: Path) -> None:
    (source,) = re.findall(r"```python\n(# guess.py\n.*?)```", PAGE.read_text(), re.DOTALL)
    path = tmp_path / "guess.py"
    path.write_text(source)
    task = load_task(f"{path}:GuessTask", "guess", -1.0, {"top": 100})
    chat = RendererChat(load_tokenizer("mtrl-tiny"))
    chat.check_append_only(task.tools)
    factory = OpenEnvFactory(f"{path}:GuessEnvironment", task)  # type: ignore[arg-type]

    instance = await factory.open()
    sample = task.sample(4)
    opening = task.messages(sample, await instance.reset(sample, 0))
    assert opening[1]["content"] == "The number is between 1 and 100."
    body = '<tool_call>\n{"name": "guess", "arguments": {"number": 500}}\n</tool_call>'
    (call,) = chat.read(chat.tokenizer.encode(body), task.tools).calls
    with pytest.raises(ToolError, match="between 1 and 100"):
        await instance.step(call)

    low, high, rewards, outcome = 1, 100, 0.0, None
    while outcome is None or not outcome.done:
        middle = (low + high) // 2
        outcome = await instance.step(ToolCall("guess", {"number": middle}))
        low = middle + 1 if outcome.text == "It is higher." else low
        high = middle - 1 if outcome.text == "It is lower." else high
        rewards += outcome.reward
    assert outcome.text == "Right."
    assert 0.35 < rewards <= 1.0  # at most 7 guesses
    await instance.close()
    await factory.close()


def test_the_reference_of_the_example_is_the_mean_of_halving() -> None:
    def guesses(hidden: int) -> int:
        low, high, count = 1, 100, 0
        while True:
            count += 1
            middle = (low + high) // 2
            if middle == hidden:
                return count
            low, high = (middle + 1, high) if middle < hidden else (low, middle - 1)

    mean = sum(1.0 - 0.1 * (guesses(hidden) - 1) for hidden in range(1, 101)) / 100
    assert mean == pytest.approx(0.52, abs=0.005)
