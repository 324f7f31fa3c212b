"""The arrows of the house: which package may import which. Imports are read, not executed, so an
import inside a function counts like any other."""

import ast
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "mtrl_cli"
FILES = sorted(PACKAGE.rglob("*.py"))
LONGEST = 400
INTERFACES = ("servers.interface", "servers.errors")


def module_of(file: Path) -> str:
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(file): file for file in FILES}


def imported(module: str, tree: ast.AST) -> Iterator[str]:
    """The modules of mtrl that a module names in an import, wherever the import stands."""
    file = MODULES[module]
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                name = f"{base}.{alias.name}"
                yield name if name in MODULES else base
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from (arg.value for arg in node.args if isinstance(arg, ast.Constant))


ARROWS = {
    (module, target)
    for module, file in MODULES.items()
    for target in imported(module, ast.parse(file.read_text(encoding="utf-8")))
    if target == "mtrl_cli" or target.startswith("mtrl_cli.")
}


def part(module: str) -> str:
    """The package below ``mtrl_cli``, or the module that stands beside the packages."""
    return module.removeprefix("mtrl_cli").removeprefix(".").partition(".")[0] or "mtrl_cli"


def leaving(source: str) -> set[tuple[str, str]]:
    """The arrows that leave one part, without ``mtrl_cli.`` in front."""
    return {
        (module.removeprefix("mtrl_cli."), target.removeprefix("mtrl_cli."))
        for module, target in ARROWS
        if part(module) == source != part(target)
    }


def under(module: str, *allowed: str) -> bool:
    return any(module == name or module.startswith(name + ".") for name in allowed)


def wrong(source: str, *forbidden: str, but: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    return sorted(
        (module, target)
        for module, target in leaving(source)
        if under(target, *forbidden) and not under(target, *but)
    )


def others(source: str, *allowed: str) -> list[tuple[str, str]]:
    return sorted(arrow for arrow in leaving(source) if not under(arrow[1], *allowed))


def arriving(target: str) -> list[tuple[str, str]]:
    return sorted(
        (module, to) for module, to in ARROWS if part(to) == target and part(module) != target
    )


def test_the_reader_of_imports_sees_them() -> None:
    """What the checks below rest on: absolute, relative and lazy imports are all found."""
    text = (
        "import mtrl_cli.errors\n"
        "from mtrl_cli.rollout import ports\n"
        "from . import totals\n"
        "from ..errors import MtrlError\n"
        "def lazy():\n"
        "    from mtrl_cli.servers.launch import default_store\n"
        "    importlib.import_module('mtrl_cli.chat.renderer')\n"
    )
    assert set(imported("mtrl_cli.training.loop", ast.parse(text))) == {
        "mtrl_cli.errors",
        "mtrl_cli.rollout.ports",
        "mtrl_cli.training.totals",
        "mtrl_cli.servers.launch",
        "mtrl_cli.chat.renderer",
    }
    assert ("mtrl_cli.training.run", "mtrl_cli.assembly") in ARROWS


def test_the_rollout_core_knows_no_implementation_and_no_screen() -> None:
    assert others("rollout", "errors", "foreign") == []


def test_training_knows_interfaces_only() -> None:
    assert wrong("training", "cli", "display", "local", "envs", "chat", "tasks") == []
    assert wrong("training", "servers", but=INTERFACES) == []


def test_a_schema_knows_nothing() -> None:
    assert leaving("wire") == set()


def test_the_screen_knows_events_only() -> None:
    assert others("display", "rollout.events", "training.events", "runs.stop") == []


def test_the_embedded_server_is_reached_over_http_only() -> None:
    assert arriving("local") == []
    # The package itself holds the version and nothing else; a schema is common ground, any child
    # process watches its parent, and any start is quiet.
    away = others("local", "mtrl_cli", "wire", "parent", "quiet")
    assert [arrow for arrow in away if not under(arrow[0], "local.warmstart")] == []
    assert {part(f"mtrl_cli.{target}") for _, target in away} <= {"tasks", "chat"}


def test_nothing_that_a_script_could_want_lives_in_the_command_line() -> None:
    assert {module for module, _ in arriving("cli")} <= {"mtrl_cli.__main__"}


def test_folders_within_a_package_look_one_way() -> None:
    for one, other in (
        ("cli.running", "cli.commands"),
        ("config.rules", "config.files"),
        ("config.files", "config.rules"),
    ):
        found = [
            (source, target)
            for source, target in ARROWS
            if under(source, f"mtrl_cli.{one}") and under(target, f"mtrl_cli.{other}")
        ]
        assert found == []


@pytest.mark.parametrize("source", ["servers", "envs", "chat", "tasks", "runs", "config"])
def test_what_implements_the_ports_knows_nothing_above_them(source: str) -> None:
    above = ("assembly", "training", "doctor", "cli", "display", "local", "script")
    assert wrong(source, *above) == []


def test_the_command_line_parses_calls_and_presents() -> None:
    below = ("training", "doctor", "rollout", "runs", "display", "config", "errors", "mtrl_cli")
    below = (*below, "report", "export")
    assert others("cli", *below) == []


def test_concrete_parts_are_put_together_in_one_place() -> None:
    """Whoever else imports a server, an environment, a task or a chat format is named here."""
    known = {
        ("envs.openenv", "tasks.load"),  # loads the class that an entrypoint names
        ("envs.connect", "tasks.load"),
        ("envs.openenv_server", "tasks.load"),
        ("report.episodes", "chat.tokenizer"),  # reads single tokens
        ("export.writers", "servers.tinker.codec"),  # writes its JSON
        ("doctor.unseen", "chat.tokenizer"),  # finds the file, and loads nothing
        ("doctor.unseen", "chat.errors"),
    }
    concrete = ("servers", "envs", "tasks", "chat")
    found = {
        arrow
        for source in {part(module) for module in MODULES} - {"assembly", "local", "cli", "testing"}
        for arrow in leaving(source)
        if under(arrow[1], *concrete) and not under(arrow[1], *INTERFACES)
    }
    assert found == known


def circle(arrows: Iterable[tuple[str, str]]) -> list[str]:
    """A circle that the arrows run in; empty where they run in none."""
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for source, target in arrows:
        sorter.add(source, target)
    try:
        sorter.prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_circles_between_packages_and_none_between_files() -> None:
    assert circle([("a", "b"), ("b", "c"), ("c", "a")]) != []
    parts = ((part(module), part(target)) for module, target in ARROWS)
    assert circle((one, other) for one, other in parts if one != other != "mtrl_cli") == []
    assert circle((one, other) for one, other in ARROWS if one != other != "mtrl_cli") == []


def test_every_file_can_be_read_in_one_go() -> None:
    lengths = {
        str(file.relative_to(PACKAGE)): len(file.read_text(encoding="utf-8").splitlines())
        for file in FILES
    }
    assert {name: length for name, length in lengths.items() if length > LONGEST} == {}
