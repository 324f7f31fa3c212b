"""One cell of the matrix: a run is held in a phase, stopped in one way, and audited."""

import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from mtrl_cli.chat.tokenizer import load_tokenizer
from mtrl_cli.testing.counted_world import CountedWorld
from mtrl_cli.testing.policy_server import ScriptedPolicyServer
from tests.cli.processes import command, environment
from tests.settlement import audit
from tests.settlement.phases import BY_NAME, Held, Phase
from tests.settlement.process import APART, Running
from tests.settlement.ways import Way

_TOKENIZER = load_tokenizer("mtrl-tiny")
_END = _TOKENIZER.convert_tokens_to_ids("<|im_end|>")

TINY = (
    "task.name=counted",
    "task.entrypoint=mtrl_cli.testing.counted_world:CountedTask",
    "env.entrypoint=mtrl_cli.testing.counted_env:CountedEnvironment",
    "env.threads=2",
    "env.check_seeds=false",
    "group.size=2",
    "group.per_step=1",
    "train.steps=2",
    "train.kl=0",
    "train.checkpoint_every=0",
    "eval.games=0",
)
SCRIPTED = (
    "server=tinker",
    "server.base_model=scripted",
    "server.tokenizer=mtrl-tiny",
    "train.lora_rank=8",
)


def player(tokens: Sequence[int], seed: int) -> tuple[list[int], list[float]]:
    """Plays a value that depends on the seed alone."""
    call = f'<tool_call>\n{{"name": "play", "arguments": {{"value": {seed % 10}}}}}\n</tool_call>'
    ids = [*_TOKENIZER.encode(call), _END]
    return ids, [-0.25] * len(ids)


@dataclass
class Result:
    """How a cell ended. ``flaws`` are the promises that it broke."""

    phase: str
    way: str
    server: str
    seconds: float = 0.0
    """From the last signal to the end of the process."""
    commits: int = 0
    code: int | None = None
    flaws: list[str] = field(default_factory=list)
    told: str = ""
    """What it said on standard error."""

    @property
    def good(self) -> bool:
        return not self.flaws


def run_cell(phase_name: str, way: Way, *, embedded: bool = False) -> Result:
    """Run the cell in a folder of its own and leave nothing behind."""
    phase = BY_NAME[phase_name]
    result = Result(phase.name, way.name, "embedded" if embedded else "scripted")
    with tempfile.TemporaryDirectory(prefix="settle-") as folder, _served(embedded) as server:
        cwd = Path(folder)
        held = Held(server, CountedWorld(cwd / "world"))
        phase.arrange(held)
        environ = {**held.world.environ(), "TINKER_API_KEY": "none-needed"}
        running = Running("train", *_overrides(phase, cwd, server), cwd=cwd, environ=environ)
        try:
            _stop(running, phase, way, held, result)
            result.flaws += _flaws(cwd, phase, way, held, running, result, embedded)
            if not way.graceful and (folder := audit.run_folder(cwd)):
                result.flaws += _reaped(cwd, folder, phase, held)
        except Exception as error:
            result.flaws.append(f"{type(error).__name__}: {' '.join(str(error).split())[-1000:]}")
        finally:
            running.end()
            held.open()
        result.told = running.err
    return result


@contextmanager
def _served(embedded: bool) -> Iterator[ScriptedPolicyServer | None]:
    if embedded:
        yield None
        return
    with ScriptedPolicyServer(sampler=player, poll_seconds=1.0) as server:
        yield server


def _overrides(phase: Phase, cwd: Path, server: ScriptedPolicyServer | None) -> tuple[str, ...]:
    if server is None:
        where: tuple[str, ...] = (
            f'server.store="{cwd}/store"',
            f"task.entrypoint={Path(__file__).with_name('blackjack.py')}:CountedBlackjack",
        )
    else:
        where = (*SCRIPTED, f'server.base_url="{server.url}"')
    return (*TINY, *where, *phase.overrides)


def _stop(running: Running, phase: Phase, way: Way, held: Held, result: Result) -> None:
    running.wait(lambda: phase.reached(held), f"the phase {phase.name!r}", 60.0)
    for index, number in enumerate(way.signals):
        time.sleep(APART if index else 0.0)
        running.send(number)
    since = time.monotonic()
    cancelling = None
    if way.cancel is not None:
        cancelling = _cancel(running.cwd, *way.cancel)
    if way.graceful:
        said = "stopping (" if way.depth == "drain" else "stopping now ("
        # What keeps nothing after a drain may have ended before the second signal.
        running.says(said, "cancelled: ")
    if way.graceful:
        held.open()
    result.code = running.code()
    result.seconds = time.monotonic() - since
    held.open()
    if cancelling is not None and (ended := _ended(cancelling, phase, reaps=not way.graceful)):
        result.flaws.append(ended)


def _flaws(
    cwd: Path,
    phase: Phase,
    way: Way,
    held: Held,
    running: Running,
    result: Result,
    embedded: bool,
) -> Iterator[str]:
    if result.code != way.code:
        yield f"exit code {result.code}, not {way.code}"
    if "Traceback" in running.err + running.out:
        yield f"a traceback: {running.err[-600:]}"
    if "\x1b" in running.err + running.out:
        yield "escape codes without a terminal"
    if embedded and not audit.none_left(f"{cwd}/store", 5.0):
        yield "the embedded server lives on"
    yield from audit.misused(held.world)
    folder = audit.run_folder(cwd)
    if held.server is not None:
        reaped = way.cancel == ("--kill",)  # by the same command, before we look
        yield from audit.repeated(held.server, reaped=reaped)
        if folder is not None:
            yield from audit.unaccounted(folder, held.server, reaped=reaped)
    if folder is None:
        if phase.name != "first contact":
            yield "no run folder"
        return
    yield from audit.torn(folder, aborted=not way.graceful)
    result.commits = audit.committed(folder)
    if way.graceful:
        yield from _settled(folder, phase, way, held, result)
    elif way.depth == "abort" and "cancelled: " in running.out:
        # It had settled before the third signal came.
        yield from _settled(folder, phase, way, held, result)
    elif way.depth == "abort":
        yield from _named(folder, phase, held, running)


def _settled(folder: Path, phase: Phase, way: Way, held: Held, result: Result) -> Iterator[str]:
    """After a drain and after a stop."""
    if live := held.world.live():
        yield f"live environments: {live}"
    if held.server is not None and held.server.models:
        yield f"models on the server: {sorted(held.server.models)}"
    state = audit.state(folder)
    if state["status"] != "cancelled":
        yield f"status {state['status']}: {state['reason']}"
    if state["borrows"] != {"held": 0, "quarantined": []}:
        yield f"borrows in run.json: {state['borrows']}"
    yield from audit.unfinished_entries(folder)
    yield from audit.groups_without_end(folder)
    stopped = {"shutdown": 2, "evaluation during training": 1}
    expected = phase.commits if way.depth == "drain" else stopped.get(phase.name, 0)
    if result.commits != expected:
        yield f"{result.commits} commits, not {expected}"


def _named(folder: Path, phase: Phase, held: Held, running: Running) -> Iterator[str]:
    """After an abort: what it left is on standard error."""
    said = running.err
    if "aborted" not in said:
        yield "an abort without a word"
    if (live := len(held.world.live())) and f"env {live}" not in said:
        yield f"{live} environments left, not named: {said[-300:]}"
    if held.server is not None:
        # The name of a model whose creation has not been answered cannot be known.
        known = [] if phase.endpoint == "create_model" else list(held.server.models)
        yield from (f"{model} is not named" for model in known if model not in said)
    if str(folder.name) not in said:
        yield f"the run's folder is not named: {said[-300:]}"


def _reaped(cwd: Path, folder: Path, phase: Phase, held: Held) -> Iterator[str]:
    """`mtrl cancel` settles what a run without a process has left."""
    if ended := _ended(_cancel(cwd), phase, reaps=True):
        yield ended
    if live := held.world.live_in_living_processes():
        yield f"live environments after the reaping: {live}"
    if held.server is not None and held.server.models and phase.endpoint != "create_model":
        yield f"models on the server after the reaping: {sorted(held.server.models)}"
    yield from audit.unfinished_entries(folder)
    yield from audit.torn(folder)
    if (status := audit.state(folder)["status"]) not in ("lost", "cancelled"):
        yield f"status {status} after the reaping"


def _cancel(cwd: Path, *options: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        command("cancel", "last", "--wait", "30", *options),
        cwd=cwd,
        env=environment(TINKER_API_KEY="none-needed"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _ended(cancelling: "subprocess.Popen[str]", phase: Phase, *, reaps: bool) -> str | None:
    """What is wrong with the end of a `mtrl cancel`."""
    said, _ = cancelling.communicate(timeout=60)
    # A model whose creation was never answered cannot be unloaded by name: it is named instead.
    named = reaps and phase.endpoint == "create_model"
    wanted = 5 if named else 0
    if cancelling.returncode != wanted:
        return f"mtrl cancel: exit code {cancelling.returncode}, not {wanted}: {said.strip()}"
    if named and "server_model" not in said:
        return f"mtrl cancel does not name what is left: {said.strip()}"
    return None
