"""What can be found wrong without importing or contacting anything: names that lead nowhere.

Modules are located by the import system's finders one package level at a time, so that no parent
is imported, and their source is parsed, not run. What cannot be told so (a compiled module, names
made at run time) is left to the run.
"""

import ast
import difflib
import re
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

from mtrl_cli.chat.errors import ChatConfigError
from mtrl_cli.chat.tokenizer import tokenizer_file
from mtrl_cli.config.files.places import named_file
from mtrl_cli.config.schema import EnvKind, Experiment
from mtrl_cli.errors import UsageError

_FORM = "write module:Class or path.py:Class"
_LARGEST = 1 << 20
"""Bytes of a source file that is parsed."""
_RENDERER = re.compile(r'^    name: Literal\["([^"]+)"\]', re.MULTILINE)
_GUESSES = "auto"


def misleading_names(experiment: Experiment) -> list[str]:
    """What names something that is not there, one line each."""
    env, server = experiment.env, experiment.server
    found = [entrypoint_problem("task.entrypoint", experiment.task.entrypoint)]
    served = env.kind is EnvKind.openenv_served and env.app is not None
    if env.kind is not EnvKind.openenv_remote and not served and env.entrypoint is not None:
        found.append(entrypoint_problem("env.entrypoint", env.entrypoint))
    if served:
        found.append(entrypoint_problem("env.app", str(env.app)))
    found += [_tokenizer_problem(server.tokenizer), _renderer_problem(server.renderer)]
    return [problem for problem in found if problem is not None]


def entrypoint_problem(key: str, entrypoint: str) -> str | None:
    """Why ``entrypoint`` cannot name anything; None where nothing speaks against it."""
    module, colon, name = entrypoint.rpartition(":")
    where = f"{key} {entrypoint!r}"
    if not colon or not module or not name.isidentifier():
        return f"{where}: {_FORM}"
    if module.endswith(".py") or "/" in module:
        try:
            file: Path | None = named_file(module, where)
        except UsageError as error:
            return str(error)
    else:
        missing, file = _located(module)
        if missing is not None:
            return f"{where}: there is no module {missing!r}; install it, or {_FORM}"
    names = None if file is None else _names(file)
    if isinstance(names, SyntaxError):
        return f"{where}: line {names.lineno} of {file} is not Python: {names.msg}"
    if names is None or name in names:
        return None
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "see what it defines"
    return f"{where}: {module} has no {name!r}; {hint}"


def _located(module: str) -> tuple[str | None, Path | None]:
    """The part of a module's name that is missing, or its source; neither where it has none."""
    paths: list[str] | None = None
    spec: ModuleSpec | None = None
    parts = module.split(".")
    for depth in range(1, len(parts) + 1):
        name = ".".join(parts[:depth])
        spec = _spec(name, paths)
        if spec is None:
            return name, None
        if depth < len(parts):
            if spec.submodule_search_locations is None:
                return ".".join(parts[: depth + 1]), None
            paths = list(spec.submodule_search_locations)
    source = spec.origin if spec is not None else None
    is_source = source is not None and source.endswith(".py")
    return None, Path(source) if is_source and source is not None else None


def _spec(name: str, paths: list[str] | None) -> ModuleSpec | None:
    """As an import would find it; what a run adds to the path (the folder here) counts."""
    for finder in sys.meta_path:
        spec = finder.find_spec(name, paths)
        if spec is None and paths is None:
            spec = finder.find_spec(name, [str(Path.cwd())])
        if spec is not None:
            return spec
    return None


def _names(file: Path) -> "set[str] | SyntaxError | None":
    """What a module's source defines at its top; None where that cannot be told."""
    try:
        if file.stat().st_size > _LARGEST:
            return None
        tree = ast.parse(file.read_bytes())
    except SyntaxError as error:
        return error
    except (OSError, ValueError, RecursionError):
        return None
    names = set(_defined(tree))
    return None if {"*", "__getattr__"} & names else names


def _defined(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield child.name
        elif isinstance(child, ast.Import | ast.ImportFrom):
            for alias in child.names:
                yield (alias.asname or alias.name).partition(".")[0]
        elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            yield child.id
        elif not isinstance(child, ast.Lambda):
            yield from _defined(child)


def _tokenizer_problem(name: str) -> str | None:
    try:
        tokenizer_file(name)
    except ChatConfigError as error:
        return f"server.tokenizer: {error}"
    return None


def _renderer_problem(name: str) -> str | None:
    known = renderer_names()
    if name == _GUESSES:
        return "server.renderer: 'auto' guesses by a model's name: name the renderer"
    if len(known) < 2 or name in known:
        return None
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"write one of {', '.join(sorted(known))}"
    return f"server.renderer: renderer {name!r} does not exist: {hint}"


def renderer_names() -> frozenset[str]:
    """The names that the source of the ``renderers`` package declares; importing it takes longer
    than everything else that a dry run does. Empty where its source is not what it was."""
    missing, file = _located("renderers.configs")
    if missing is not None or file is None:
        return frozenset()
    return frozenset(_RENDERER.findall(file.read_text(encoding="utf-8")))
