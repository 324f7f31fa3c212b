"""Loading what a configuration names as ``module:Name`` or ``path.py:Name``, mostly classes."""

import difflib
import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from mtrl_cli.config.files.places import named_file
from mtrl_cli.errors import UsageError
from mtrl_cli.foreign import line
from mtrl_cli.rollout.ports import Task
from mtrl_cli.rollout.task_fault import may_be_the_users

_FORM = "write module:Class or path.py:Class"


def load_class(entrypoint: str, what: str = "class") -> type:
    """The class that ``entrypoint`` names; ``what`` says in an error what it was to be.

    Raises:
        UsageError: one line that says what is wrong and what to write instead.
    """
    found = load_object(entrypoint, what)
    if not isinstance(found, type):
        kind, name = type(found).__name__, entrypoint.rpartition(":")[2]
        raise UsageError(f"{what} {entrypoint!r}: {name!r} is a {kind}, not a class")
    return found


def load_object(entrypoint: str, what: str) -> Any:
    """What ``entrypoint`` names.

    Raises:
        UsageError: one line that says what is wrong and what to write instead.
    """
    module_name, colon, name = entrypoint.rpartition(":")
    if not colon or not module_name or not name.isidentifier():
        raise UsageError(f"{what} {entrypoint!r}: {_FORM}")
    module = _load_module(module_name, f"{what} {entrypoint!r}")
    found = getattr(module, name, None)
    if found is None:
        names = [name for name, value in vars(module).items() if isinstance(value, type)]
        own = [name for name in names if getattr(module, name).__module__ == module.__name__]
        close = difflib.get_close_matches(name, own or names, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(own) or 'no class'}"
        raise UsageError(f"{what} {entrypoint!r}: {module_name} has no {name!r}; {hint}")
    return found


def load_task(entrypoint: str, name: str, unfinished_reward: float, params: dict[str, Any]) -> Task:
    """The task of a configuration.

    Raises:
        UsageError: the class cannot be loaded, or does not take these parameters.
    """
    task_class = load_class(entrypoint, "task.entrypoint")
    try:
        task: Task = task_class(name=name, unfinished_reward=unfinished_reward, **params)
    except TypeError as error:
        raise UsageError(
            f"task.entrypoint {entrypoint!r}: {line(error)}; its parameters are those of"
            " task.params, beside name and unfinished_reward"
        ) from error
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and may_be_the_users():
            raise
        raise UsageError(
            f"task.entrypoint {entrypoint!r}: {type(error).__name__}: {line(error)}"
        ) from error
    missing = [
        part
        for part in ("name", "tools", "unfinished_reward", "sample", "messages")
        if not hasattr(task, part)
    ]
    if missing:
        raise UsageError(
            f"task.entrypoint {entrypoint!r}: the class lacks {', '.join(missing)}; see"
            " docs/custom-task.md"
        )
    return task


def _load_module(name: str, where: str) -> ModuleType:
    """Raises: UsageError."""
    try:
        if name.endswith(".py") or "/" in name:
            return _load_file(name, where)
        _find_beside(Path.cwd())
        return importlib.import_module(name)
    except UsageError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise UsageError(
                f"{where}: there is no module {error.name!r}; install it, or {_FORM}"
            ) from error
        raise UsageError(f"{where}: it imports {error.name!r}, which is not installed") from error
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and may_be_the_users():
            raise
        raise UsageError(
            f"{where}: importing it failed: {type(error).__name__}: {line(error)}"
        ) from error


def _load_file(name: str, where: str) -> ModuleType:
    """A module of its own per file, whatever the file is called; loaded once a process."""
    path = named_file(name, where)
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:8]
    module_name = f"mtrl_user_{path.stem}_{digest}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{where}: {path.name!r} is not a Python file; {_FORM}")
    _find_beside(path.parent)
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # pydantic and pickle look classes up by their module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    return module


def _find_beside(folder: Path) -> None:
    """Let a user's module import its neighbours, as a script started there would."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
