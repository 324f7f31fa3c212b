"""A task whose own code fails: one line with its place, the traceback in the run's log.txt."""

from pathlib import Path

import pytest

from mtrl_cli.errors import MtrlError
from mtrl_cli.testing.policy_server import ScriptedPolicyServer
from tests.training.runs import train_on

TASK = """
from mtrl_cli.tasks.blackjack.task import Blackjack


class Broken(Blackjack):
    def {method}:
        return self.words["opening"]
"""

NONE = """
from mtrl_cli.tasks.blackjack.task import Blackjack


class Broken(Blackjack):
    {body}
"""


async def ended(tmp_path: Path, *overrides: str) -> MtrlError:
    """What ends a run in ``tmp_path``."""
    with pytest.raises(MtrlError) as raised:
        async with ScriptedPolicyServer() as server:
            await train_on(server.url, tmp_path / "runs", "env.check_seeds=false", *overrides)
    return raised.value


@pytest.mark.parametrize(
    ("method", "says"),
    [
        ("messages(self, sample, observation)",
         "all 1 groups of a step failed: Broken.messages raised AttributeError: "),
        ("sample(self, seed)", "no task sample for group 0: Broken.sample raised AttributeError: "),
    ],
)  # fmt: skip
async def test_a_task_that_always_fails_ends_the_run(
    tmp_path: Path, method: str, says: str
) -> None:
    path = tmp_path / "broken.py"
    path.write_text(TASK.format(method=method))
    error = await ended(tmp_path, f"task.entrypoint={path}:Broken")
    assert str(error).startswith(says)
    assert str(error).endswith(f"({path}:7)")
    log = tmp_path / "runs/latest/log.txt"
    assert log.stat().st_mode & 0o077 == 0
    assert log.read_text().count("Traceback (most recent call last)") == 1
    assert 'return self.words["opening"]' in log.read_text()


@pytest.mark.parametrize(
    ("body", "overrides", "says"),
    [
        ("def sample(self, seed): return None", (),
         "no task sample for group 0: Broken.sample returned None where a TaskSample is needed"),
        ("def sample(self, seed): return None", ("eval.games=2",),
         "no task sample for group 0: Broken.sample returned None where a TaskSample is needed"),
        ("def passed(self, reward): return self.least < reward", ("eval.games=2",),
         "whether a game is passed: Broken.passed raised AttributeError: "),
    ],
)  # fmt: skip
async def test_what_a_run_needs_of_its_task(
    tmp_path: Path, body: str, overrides: tuple[str, ...], says: str
) -> None:
    path = tmp_path / "broken.py"
    path.write_text(NONE.format(body=body))
    error = await ended(tmp_path, f"task.entrypoint={path}:Broken", *overrides)
    assert str(error).startswith(says)
    log = tmp_path / "runs/latest/log.txt"
    assert log.read_text().count("Traceback (most recent call last)") >= 1


ENVIRONMENT = """
from mtrl_cli.tasks.blackjack.env import BlackjackEnvironment


class Broken(BlackjackEnvironment):
    def {method}:
        return sed
"""


@pytest.mark.parametrize(
    ("method", "operation"),
    [
        ("__init__(self)", "open"),
        ("reset(self, seed=None, **given)", "reset"),
    ],
)
async def test_an_environment_that_raises_is_told_with_its_place(
    tmp_path: Path, method: str, operation: str
) -> None:
    path = tmp_path / "broken.py"
    path.write_text(ENVIRONMENT.format(method=method))
    error = await ended(tmp_path, f"env.entrypoint={path}:Broken")
    told = f"Broken.{operation} raised NameError: name 'sed' is not defined ({path}:7)"
    assert str(error) == f"all 1 groups of a step failed: {told}"
    assert error.hint is not None
    assert "log.txt; mend the code" in error.hint
    log = (tmp_path / "runs/latest/log.txt").read_text()
    assert f'File "{path}", line 7, in {method.partition("(")[0]}\n    return sed' in log
