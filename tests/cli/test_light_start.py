"""What a command imports before it does its work. CPU time cannot be asserted on a busy machine;
what it is made of can: the packages of others, by name, and mtrl's own modules, by their number
(without the packages' faces, which are empty).
"""

import json
import subprocess
import sys

import pytest

from tests.cli.processes import environment
from tests.cli.world import World

HELP = {"typer", "click", "shellingham", "annotated_doc", "typing_extensions"}
PARAMETERS = HELP | {"pydantic", "pydantic_core", "typing_inspection", "annotated_types"}
"""Typer reads a command's parameters with pydantic, from 0.27 on."""
COMPOSITION = PARAMETERS | {"hydra", "omegaconf", "antlr4", "yaml", "attr", "attrs", "packaging"}

SCRIPT = """
import json, runpy, sys
sys.argv = ["mtrl", *sys.argv[1:]]
try:
    runpy.run_module("mtrl_cli", run_name="__main__")
finally:
    names = [name for name in sys.modules if name[0] != "_"]
    others = {name.partition(".")[0] for name in names} - sys.stdlib_module_names
    files = {n: sys.modules[n].__file__ or "" for n in names if n.startswith("mtrl_cli")}
    own = [name for name, file in files.items() if not file.endswith("__init__.py")]
    sys.stderr.write(json.dumps([sorted(others - {"mtrl_cli", "cython_runtime"}), len(own)]))
"""


@pytest.mark.parametrize(
    ("arguments", "packages", "most"),
    [
        ("--help", HELP, 10),
        ("--version", HELP, 10),
        ("runs", PARAMETERS, 18),
        ("cancel RUN", PARAMETERS, 21),
        ("show RUN", PARAMETERS, 48),
        ("trajectory RUN", PARAMETERS, 40),
        ("rollout --dry-run", COMPOSITION, 45),
    ],
)
def test_a_quick_command_imports_little(
    trained: World, arguments: str, packages: set[str], most: int
) -> None:
    """Fails when a heavy package comes back, and when the commands' modules begin to import the
    run's (the loop, a server's client, the environments are 150 modules)."""
    words = [trained.first if word == "RUN" else word for word in arguments.split()]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *words],
        env=environment(MTRL_HOME=str(trained.home)),
        cwd=trained.folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    others, own = json.loads(done.stderr)
    assert set(others) <= packages
    assert own <= most


def test_garbage_is_searched_for_as_usual_once_the_start_is_over() -> None:
    script = (
        "import gc\n"
        "import mtrl_cli.__main__ as entry\n"
        "usual, callbacks = gc.get_threshold(), list(gc.callbacks)\n"
        "entry._search_for_garbage_later()\n"
        "assert gc.get_threshold()[0] > 100 * usual[0]\n"
        "kept = [[] for _ in range(250_000)]\n"
        "assert (gc.get_threshold(), gc.callbacks) == (usual, callbacks)\n"
    )
    subprocess.run([sys.executable, "-c", script], env=environment(), timeout=60, check=True)
