"""Entrypoints: what is loaded, and one line for what cannot be."""

import os
from pathlib import Path

import pytest

from mtrl_cli.doctor.unseen import entrypoint_problem
from mtrl_cli.errors import UsageError
from mtrl_cli.tasks.blackjack.task import Blackjack
from mtrl_cli.tasks.load import load_class, load_task


def write(folder: Path, text: str, name: str = "mine.py") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_a_class_of_a_module() -> None:
    assert load_class("mtrl_cli.tasks.blackjack.task:Blackjack") is Blackjack


def test_a_class_of_a_file_is_loaded_once_and_imports_its_neighbour(tmp_path: Path) -> None:
    write(tmp_path, "VALUE = 3", "neighbour_of_mine.py")
    path = write(tmp_path, "import neighbour_of_mine\nclass A:\n    v = neighbour_of_mine.VALUE\n")
    assert load_class(f"{path}:A").v == 3  # type: ignore[attr-defined]
    assert load_class(f"{path}:A") is load_class(f"{path}:A")


def test_two_files_of_one_name_are_two_modules(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder, f"class A:\n    where = {folder!r}\n")
    assert [load_class(f"{tmp_path}/{f}/mine.py:A").where for f in "ab"] == ["a", "b"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("entrypoint", "message"),
    [
        ("nonsense", "write module:Class or path.py:Class"),
        ("a:b:", "write module:Class or path.py:Class"),
        (":A", "write module:Class or path.py:Class"),
        ("no_such_module:A", "there is no module 'no_such_module'; install it, or write"),
        ("mtrl_cli.no_such:A", "there is no module 'mtrl_cli.no_such'"),
        ("no/such.py:A", "there is no file '.*/no/such.py'"),
        ("mtrl_cli.tasks.blackjack.task:Blackjak", "no 'Blackjak'; did you mean 'Blackjack'"),
        ("mtrl_cli.tasks.blackjack.task:Xyz", "no 'Xyz'; it has Blackjack"),
        ("mtrl_cli.tasks.blackjack.text:TOOLS", "'TOOLS' is a tuple, not a class"),
    ],
)
def test_what_cannot_be_loaded_is_said_in_one_line(entrypoint: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        load_class(entrypoint, "task.entrypoint")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"task.entrypoint {entrypoint!r}: ")


def test_what_is_no_file(tmp_path: Path) -> None:
    """Also where nothing is imported: what a dry run says."""
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "loop.py").symlink_to("loop.py")
    kinds = {"pipe": "a pipe", "folder": "a folder", "loop": "a link that leads nowhere"}
    for name, what in kinds.items():
        entrypoint = f"{tmp_path}/{name}.py:A"
        with pytest.raises(UsageError) as caught:
            load_class(entrypoint, "task.entrypoint")
        assert str(caught.value).endswith(f"/{name}.py' is {what}, not a file")
        assert entrypoint_problem("task.entrypoint", entrypoint) == str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def", "importing it failed: SyntaxError: "),
        ("import not_there_at_all", "it imports 'not_there_at_all', which is not installed"),
        ("import sys\nsys.exit('usage: …')", "importing it failed: SystemExit: usage: …$"),
        ("raise ValueError('first\\nsecond')", "importing it failed: ValueError: first$"),
    ],
)
def test_a_file_that_does_not_import(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    for _ in range(2):  # a failed import leaves nothing half loaded
        with pytest.raises(UsageError, match=message):
            load_class(f"{path}:A")


def test_of_the_classes_in_a_file_those_that_it_defines_are_meant(tmp_path: Path) -> None:
    text = "from openenv.core.env_server.interfaces import Environment\nclass PushEnv: ..."
    with pytest.raises(UsageError, match="did you mean 'PushEnv'"):
        load_class(f"{write(tmp_path, text)}:PushEnvironment")


def test_a_task_gets_its_parameters() -> None:
    task = load_task("mtrl_cli.tasks.blackjack.task:Blackjack", "bj", -0.25, {})
    assert (task.name, task.unfinished_reward) == ("bj", -0.25)


def test_a_task_that_does_not_take_a_parameter() -> None:
    with pytest.raises(UsageError, match=r"unexpected keyword argument 'decks'; its parameters"):
        load_task("mtrl_cli.tasks.blackjack.task:Blackjack", "bj", -1.0, {"decks": 2})


def test_a_class_that_is_no_task(tmp_path: Path) -> None:
    text = "class A:\n    def __init__(self, name, unfinished_reward):\n        self.name = name\n"
    with pytest.raises(UsageError, match=r"lacks tools, unfinished_reward, .*custom-task\.md"):
        load_task(f"{write(tmp_path, text)}:A", "a", 0.0, {})


def test_a_task_needs_no_known_returns(tmp_path: Path) -> None:
    text = """
class A:
    tools = ()
    def __init__(self, name, unfinished_reward):
        self.name, self.unfinished_reward = name, unfinished_reward
    def sample(self, seed): ...
    def messages(self, sample, observation): ...
"""
    assert load_task(f"{write(tmp_path, text)}:A", "a", 0.0, {}).name == "a"
