"""The settlement matrix with sandboxes for environments: a run is held in a phase of a sandbox's
life, stopped in every way, and audited by the emulator's own count."""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from mtrl_cli.chat.tokenizer import load_tokenizer
from mtrl_cli.testing import faults
from mtrl_cli.testing.e2b_emulator import E2BEmulator
from mtrl_cli.testing.policy_server import ScriptedPolicyServer
from tests.cells import asked_for, parameters, side_by_side
from tests.cli.processes import mtrl
from tests.settlement import audit
from tests.settlement.process import APART, Running
from tests.settlement.ways import BY_NAME, WAYS, Way

pytest.importorskip("e2b")

_TOKENIZER = load_tokenizer("mtrl-tiny")
_CALL = '<tool_call>\n{"name": "play", "arguments": {"action": "stand"}}\n</tool_call>'
_IDS = [*_TOKENIZER.encode(_CALL), _TOKENIZER.convert_tokens_to_ids("<|im_end|>")]
RUN = (
    "conf=blackjack_e2b", "server=tinker", "server.base_model=scripted",
    "server.tokenizer=mtrl-tiny", "train.lora_rank=8", "group.size=2", "group.per_step=1",
    "train.steps=2", "train.kl=0", "train.checkpoint_every=0", "env.check_seeds=false",
    "env.e2b.per_second=100", "env.e2b.settles=3",
)  # fmt: skip


@dataclass(frozen=True)
class Phase:
    """``operation`` is held for the two sandboxes of the first group."""

    name: str
    operation: str
    skip: int = 0
    executes: bool = True
    """Whether it takes effect before it is held: the sandbox then lives and nobody knows its id."""


PHASES = (
    Phase("creation, before it takes effect", "create", executes=False),
    Phase("creation, after it took effect", "create"),
    Phase("upload", "write", executes=False),
    Phase("start", "start", executes=False),
    Phase("reset", "send_input", executes=False),
    Phase("step", "send_input", skip=2, executes=False),
    Phase("kill, before it takes effect", "kill", executes=False),
    Phase("kill, after it took effect", "kill"),
)
Cell = tuple[str, str]
"""Phase, way."""

CELLS: list[Cell] = [(phase.name, way.name) for phase in PHASES for way in WAYS]
SAMPLE = [
    ("creation, after it took effect", "SIGINT ×2"),
    ("step", "SIGTERM"),
    ("reset", "SIGKILL"),
]


def stand(tokens: Sequence[int], seed: int) -> tuple[list[int], list[float]]:
    return _IDS, [-0.25] * len(_IDS)


def run_cell(phase: Phase, way: Way) -> list[str]:
    """The promises that were broken."""
    with (
        tempfile.TemporaryDirectory(prefix="settle-e2b-") as folder,
        ScriptedPolicyServer(sampler=stand, poll_seconds=1.0) as server,
        E2BEmulator() as emulator,
    ):
        gate = faults.Gate()
        hold = faults.hold(gate, executes=phase.executes)
        emulator.faults.add(phase.operation, hold, times=2, skip=phase.skip)
        environ = {**emulator.environ(), "TINKER_API_KEY": "none-needed"}
        running = Running(
            "train", *RUN, f'server.base_url="{server.url}"', cwd=Path(folder), environ=environ
        )
        try:
            running.wait(lambda: gate.arrived >= 2, f"the phase {phase.name!r}", 120.0)
            flaws = list(_stopped(running, way, gate, environ))
            flaws += _audited(Path(folder), running, way, emulator, server, environ)
        except Exception as error:
            flaws = [f"{type(error).__name__}: {' '.join(str(error).split())[-1000:]}"]
        finally:
            running.end()
            gate.open()
    return flaws


def _stopped(
    running: Running, way: Way, gate: faults.Gate, environ: dict[str, str]
) -> Iterator[str]:
    for index, number in enumerate(way.signals):
        time.sleep(APART if index else 0.0)
        running.send(number)
    with ThreadPoolExecutor(1) as beside:
        cancelling = None
        if way.cancel is not None:
            cancelling = beside.submit(_cancel, running.cwd, environ, *way.cancel)
        if way.graceful:
            running.says("stopping (" if way.depth == "drain" else "stopping now (", "cancelled: ")
            gate.open()
        if (code := running.code(90)) != way.code:
            yield f"exit code {code}, not {way.code}: {running.err[-500:]}"
        gate.open()
        if cancelling is not None and cancelling.result()[0] != 0:
            yield f"mtrl cancel: {cancelling.result()}"


def _audited(
    cwd: Path, running: Running, way: Way, emulator: E2BEmulator, server: ScriptedPolicyServer,
    environ: dict[str, str],
) -> Iterator[str]:  # fmt: skip
    folder = audit.run_folder(cwd)
    assert folder is not None
    if "Traceback" in running.err + running.out:
        yield f"a traceback: {running.err[-600:]}"
    # An abort may come when the run has settled already.
    if way.graceful or "cancelled: " in running.out:
        state = audit.state(folder)
        if (state["status"], state["borrows"]) != ("cancelled", {"held": 0, "quarantined": []}):
            yield f"run.json: {state}"
        commits = audit.committed(folder)
        if commits != (1 if way.depth == "drain" else 0):
            yield f"{commits} commits"
        yield from audit.groups_without_end(folder)
    else:
        said = "aborted" in running.err and folder.name in running.err
        if way.depth == "abort" and not said:
            yield f"an abort without a word: {running.err[-300:]}"
        code, told = _cancel(cwd, environ)
        if code != 0 or (way.cancel is None and "nothing is left" not in told):
            yield f"mtrl cancel: {code}: {told}"
    yield from audit.torn(folder)
    yield from audit.unfinished_entries(folder)
    if server.models:
        yield f"models on the server: {sorted(server.models)}"
    if emulator.live:
        yield f"sandboxes: {emulator.live}"
    counts = emulator.counts()
    if counts["created"] != counts["killed"]:
        yield f"not every sandbox was killed: {counts}"


def _cancel(cwd: Path, environ: dict[str, str], *options: str) -> tuple[int, str]:
    ended = mtrl("cancel", "last", "--wait", "60", *options, cwd=cwd, **environ)
    return ended.returncode, ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def broken_promises(request: pytest.FixtureRequest) -> Iterator[Callable[[Cell], list[str]]]:
    """Those of a cell. All cells of this session run side by side: each is a few processes that
    mostly wait."""
    phases = {phase.name: phase for phase in PHASES}

    def run(cell: Cell) -> list[str]:
        return run_cell(phases[cell[0]], BY_NAME[cell[1]])

    with side_by_side(3, run, asked_for(request.session, Path(__file__), "cell")) as result:
        yield result


@pytest.mark.parametrize("cell", parameters(CELLS, SAMPLE, " / ".join))
def test_cell(cell: Cell, broken_promises: Callable[[Cell], list[str]]) -> None:
    assert broken_promises(cell) == []
