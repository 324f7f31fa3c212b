"""The example of docs/custom-task.md is the one in examples/custom_task, short, and plays."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mtrl_cli.chat.renderer import RendererChat
from mtrl_cli.chat.startup import check_append_only
from mtrl_cli.chat.tokenizer import load_tokenizer
from mtrl_cli.envs.openenv import OpenEnvFactory
from mtrl_cli.light_import import light_packages
from mtrl_cli.rollout.ports import ToolCall
from mtrl_cli.tasks.load import load_task

light_packages("openenv", "openenv.core", "openenv.core.env_server")

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples/custom_task"


def test_the_page_shows_the_files_as_they_are() -> None:
    page = (ROOT / "docs/custom-task.md").read_text()
    # Those that begin a line: the others, in a list, are pieces.
    assert re.findall(r"^```python\n(.*?)```", page, re.DOTALL | re.MULTILINE) == [
        (EXAMPLE / "guess.py").read_text()
    ]
    assert re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) == [
        (EXAMPLE / "guess.yaml").read_text()
    ]
    assert len((EXAMPLE / "guess.py").read_text().splitlines()) < 60


async def test_it_plays() -> None:
    path = EXAMPLE / "guess.py"
    task = load_task(f"{path}:GuessTask", "guess", -1.0, {})
    chat = RendererChat(load_tokenizer("mtrl-tiny"))
    check_append_only(chat, task.tools)
    factory = OpenEnvFactory(f"{path}:GuessEnvironment", task)  # type: ignore[arg-type]

    instance = await factory.open()
    sample = task.sample(4)
    [opening] = task.messages(sample, await instance.reset(sample, 0))
    assert opening["content"].startswith("The number is between 1 and 20. Find it")
    body = '<tool_call>\n{"name": "guess", "arguments": {"number": 500}}\n</tool_call>'
    (call,) = chat.read(chat.tokenizer.encode(body), task.tools).calls
    assert call.error is not None

    low, high, rewards, outcome = 1, 20, 0.0, None
    while outcome is None or not outcome.done:
        middle = (low + high) // 2
        outcome = await instance.step(ToolCall("guess", {"number": middle}))
        low = middle + 1 if outcome.text == "It is higher." else low
        high = middle - 1 if outcome.text == "It is lower." else high
        rewards += outcome.reward
    assert outcome.text == "Right."
    assert 0.55 < rewards <= 1.0  # at most 5 guesses
    await instance.close()
    await factory.close()


def test_its_reference_is_the_mean_of_halving() -> None:
    def guesses(hidden: int) -> int:
        low, high, count = 1, 20, 0
        while True:
            count += 1
            middle = (low + high) // 2
            if middle == hidden:
                return count
            low, high = (middle + 1, high) if middle < hidden else (low, middle - 1)

    mean = sum(1.0 - 0.1 * (guesses(hidden) - 1) for hidden in range(1, 21)) / 20
    assert mean == pytest.approx(0.73)


def test_it_trains_from_its_own_folder(tmp_path: Path) -> None:
    overrides = ("train.steps=1", "group.per_step=1", "group.size=2", "eval.games=2")
    command = [sys.executable, "-m", "mtrl_cli", "train", "conf=./guess.yaml", *overrides]
    ended = subprocess.run(
        [*command, f'run.dir="{tmp_path}/runs"', f'server.store="{tmp_path}/store"'],
        cwd=EXAMPLE,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "finished: guess, 1 of 1 steps" in ended.stdout
