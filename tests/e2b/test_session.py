"""One sandbox as a session: what the game does, and what happens to the sandbox, kept apart."""

import asyncio
import gc
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mtrl_cli.envs.e2b import program, worker
from mtrl_cli.envs.e2b.link import Link, LinkBroken
from mtrl_cli.envs.e2b.session import UnusableProgram
from mtrl_cli.envs.interface import Deadlines, SessionLost, TaskEnvironment
from mtrl_cli.errors import UsageError
from mtrl_cli.rollout.ports import EnvironmentFault, StepOutcome, ToolError
from mtrl_cli.testing import faults
from mtrl_cli.testing.e2b_emulator import E2BEmulator
from tests.e2b.rig import GAME, SAMPLE, go, rig


async def test_an_episode(emulator: E2BEmulator) -> None:
    async with rig(emulator, params={"start": 40}) as use:
        async with use.environment() as environment:
            assert await environment.reset(SAMPLE, 3) == "seed 7 member 3"
            assert await environment.step(go(value=0.5)) == StepOutcome("step 41", 0.5, False)
            assert await environment.step(go("end", value=-1.0)) == StepOutcome("over", -1.0, True)
        key = "t/sandbox-2"
        assert use.journal.states(key) == ["requested", "held", "returning", "released"]
        known = next(facts for name, state, facts in use.journal.lines if state == "held"
                     and name == key)  # fmt: skip
        assert emulator.metadata[known["id"]] == {
            "mtrl": "sandbox", "mtrl_run": "run-1", "mtrl_borrow": key, "mtrl_try": "1"
        }  # fmt: skip
    assert emulator.counts()["killed"] == emulator.counts()["created"] == 1


async def test_what_the_game_prints_reads_and_returns_does_no_harm(emulator: E2BEmulator) -> None:
    async with rig(emulator) as use, use.environment() as environment:
        await environment.reset(SAMPLE, 0)
        assert (await environment.step(go("noise"))).text == "step 1"
        assert (await environment.step(go("read"))).text == "''"
        # Longer than the pieces that output comes in, and no piece ends with a character.
        long = await environment.step(go("long", value=5000))
        assert long.text == "ä€" * 5000
        assert (await environment.step(go())).text == "step 4"


@pytest.mark.parametrize(
    ("do", "told"),
    [
        ("raise", "Game.step: ZeroDivisionError: by nothing"),
        ("exit", "Game.step: SystemExit: 3"),
        ("speechless", "Game.step: SpeechlessError: (no message)"),
        ("odd", "Game.step returned str for its observation, not an object"),
        ("object", "Game.step: it returned what is not JSON: "),
        ("nan", "Game returned the reward nan, which is not finite"),
        ("word", "Game returned the reward 'high', not a number"),
    ],
)
async def test_faults_of_the_game(emulator: E2BEmulator, do: str, told: str) -> None:
    async with rig(emulator) as use, use.environment() as environment:
        await environment.reset(SAMPLE, 0)
        with pytest.raises(EnvironmentFault) as raised:
            await environment.step(go(do))
        assert str(raised.value).startswith(told)
        if do == "raise":
            assert re.search(r" \(.*game\.py:\d+\)$", str(raised.value))
            assert raised.value.trace is not None
            assert 'raise ZeroDivisionError("by nothing' in raised.value.trace


async def test_the_game_may_refuse_and_go_on(emulator: E2BEmulator) -> None:
    async with rig(emulator) as use, use.environment() as environment:
        with pytest.raises(EnvironmentFault, match="LookupError: no such member"):
            await environment.reset(SAMPLE, 99)
        await environment.reset(SAMPLE, 0)
        with pytest.raises(ToolError, match=r"^You cannot do that now$"):
            await environment.step(go("refuse"))
        assert (await environment.step(go())).text == "step 2"


@pytest.mark.parametrize("operation", ["write", "start", "send_input"])
async def test_a_sandbox_that_vanishes_is_infrastructure(
    emulator: E2BEmulator, operation: str
) -> None:
    emulator.faults.add(operation, faults.vanish(), skip=operation == "send_input")
    async with rig(emulator) as use, use.environment() as environment:
        with pytest.raises(SessionLost, match=r"was not found|killed or reached its end"):
            await _first_step(environment)
        with pytest.raises(SessionLost, match=r"no (start|reset), (start|step)"):
            await environment.reset(SAMPLE, 0)
    assert emulator.counts()["vanished"] == 1
    assert emulator.live == []


async def _first_step(environment: TaskEnvironment) -> None:
    await environment.reset(SAMPLE, 0)
    await environment.step(go())


async def test_a_process_that_dies_is_infrastructure(emulator: E2BEmulator) -> None:
    async with rig(emulator) as use, use.environment() as environment:
        await environment.reset(SAMPLE, 0)
        with pytest.raises(SessionLost, match="ended with exit code 7"):
            await environment.step(go("die"))


async def test_a_step_that_passes_its_deadline_ends_the_session(emulator: E2BEmulator) -> None:
    deadlines = Deadlines(5.0, 5.0, 0.3, 4.0)
    async with rig(emulator, deadlines=deadlines) as use, use.environment() as environment:
        await environment.reset(SAMPLE, 0)
        with pytest.raises(SessionLost, match=r"step passed its deadline of 0\.3 s"):
            await environment.step(go("sleep", value=30))
        with pytest.raises(SessionLost, match="no step"):
            await environment.step(go())
    assert emulator.live == []


@pytest.mark.parametrize(
    ("operation", "fault"),
    [
        ("output", faults.reset()),
        ("output", faults.drop_reply()),
        ("send_input", faults.reset()),
        ("send_input", faults.drop_request()),
        ("send_input", faults.drop_reply()),
        ("send_input", faults.status(429, {"code": 429, "message": "slow down"})),
        ("send_input", faults.status(504, "<html>", executes=True)),
        ("send_input", faults.status(503, "<html>")),
    ],
)
async def test_an_unknown_outcome_is_asked_again_and_executes_once(
    emulator: E2BEmulator, operation: str, fault: faults.Fault
) -> None:
    async with rig(emulator) as use, use.environment() as environment:
        await environment.reset(SAMPLE, 0)
        emulator.faults.add(operation, fault)
        assert (await environment.step(go())).text == "step 1"
        assert (await environment.step(go())).text == "step 2"
        assert emulator.faults.met == 1


async def test_a_stream_that_stays_broken_ends_the_session(emulator: E2BEmulator) -> None:
    async with rig(emulator) as use, use.environment() as environment:
        await environment.reset(SAMPLE, 0)
        emulator.faults.add("output", faults.reset(), times=2)
        with pytest.raises(SessionLost, match="broke off"):
            await environment.step(go())
    assert emulator.live == []


async def test_a_line_that_fails_after_the_stream_leaves_no_loose_error() -> None:
    """The SDK may answer its cancellation with the error that was on its way."""
    import e2b

    sent, loose = asyncio.Event(), list[Any]()

    class Handle:
        async def wait(self) -> None:
            await sent.wait()
            raise e2b.NotFoundException("the sandbox was not found")

        async def send_stdin(self, text: str, request_timeout: float) -> None:
            sent.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise e2b.NotFoundException("the sandbox was not found") from None

    asyncio.get_running_loop().set_exception_handler(lambda _, facts: loose.append(facts))
    link = Link(SimpleNamespace(commands=None))
    link._attach(Handle())
    with pytest.raises(LinkBroken, match="not found"):
        await link.ask("step", {}, timeout=5.0)
    del link
    await asyncio.sleep(0.01)
    gc.collect()
    assert loose == []


async def test_a_game_that_cannot_be_loaded_ends_the_run(
    emulator: E2BEmulator, tmp_path: Path
) -> None:
    (tmp_path / "lacking.py").write_text("import helper_of_it\nclass Game: pass\n")
    (tmp_path / "helper_of_it.py").write_text("")
    entrypoint = f"{tmp_path}/lacking.py:Game"
    async with rig(emulator, entrypoint=entrypoint) as use, use.environment() as environment:
        with pytest.raises(UnusableProgram, match="No module named 'helper_of_it'; the files that"):
            await environment.reset(SAMPLE, 0)
    given = {"entrypoint": entrypoint, "files": (f"{tmp_path}/helper_of_it.py",)}
    async with rig(emulator, **given) as use, use.environment() as environment:
        with pytest.raises(EnvironmentFault, match="has no attribute 'reset'"):
            await environment.reset(SAMPLE, 0)
    assert emulator.live == []


async def test_a_cancelled_step_gives_the_sandbox_back_at_once(emulator: E2BEmulator) -> None:
    deadlines = Deadlines(5.0, 5.0, 60.0, 4.0)
    async with rig(emulator, deadlines=deadlines) as use:
        started = asyncio.Event()

        async def play() -> None:
            async with use.environment() as environment:
                await environment.reset(SAMPLE, 0)
                started.set()
                await use_protected(environment)

        async def use_protected(environment: Any) -> None:
            await environment.step(go("sleep", value=30))

        playing = asyncio.ensure_future(play())
        await started.wait()
        await asyncio.sleep(0.1)
        began = time.monotonic()
        playing.cancel()
        await asyncio.wait({playing})
        assert time.monotonic() - began < 2.0
        assert emulator.live == []


# --- the uploaded files -------------------------------------------------------------------------


def test_files_keep_their_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "words.txt").write_text("a b")
    (tmp_path / "play.py").write_text("class Play: pass")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "other.py").write_text("")
    monkeypatch.chdir(tmp_path)
    given = ["data/words.txt", "mtrl_cli.tasks.blackjack.game"]
    loaded = program.load_program("play.py:Play", given, {"top": 3})
    assert set(loaded.files) == {
        "mtrl_worker.py", "play.py", "data/words.txt", "mtrl_cli/tasks/blackjack/game.py"
    }  # fmt: skip
    assert loaded.command == "exec python3 -u mtrl_worker.py play.py:Play '{\"top\": 3}'"
    assert "other.py" in program.load_program(f"{GAME}:Game", [str(elsewhere / "other.py")]).files
    for files, told in (
        (["no/such.txt"], "there is no file"),
        (["no.such.module"], "there is no module 'no.such.module'"),
    ):
        with pytest.raises(UsageError, match=told):
            program.load_program("play.py:Play", files)


def answers(*lines: str, python: str = sys.executable) -> list[dict[str, Any]]:
    """What a worker of the game answers to these lines."""
    process = subprocess.run(
        [python, "-u", worker.__file__, f"{GAME}:Game", "{}"],
        input="".join(lines), capture_output=True, text=True, check=True, cwd=GAME.parent,
    )  # fmt: skip
    return [json.loads(line) for line in process.stdout.splitlines()]


def test_the_worker_answers_a_repeated_id_from_memory() -> None:
    def request(number: int, **data: Any) -> str:
        operation = "step" if "do" in data else "reset"
        return json.dumps({"id": number, "op": operation, "data": data}) + "\n"

    hello, _, one, again, garbage, two, unknown, end = answers(
        request(1, seed=1, member=0),
        request(2, do="go"),
        request(2, do="go"),
        '{"id": 3, "op": "st',  # cut off, and ended by the new line of the next try
        "\n" + request(3, do="go"),
        '{"id": 4, "op": "dance"}\n',
        '{"id": 5, "op": "close"}\n',
    )
    assert hello["id"] == 0
    assert one == again
    assert one["ok"]["observation"] == {"text": "step 1"}
    assert (garbage["id"], garbage["error"]["kind"]) == (None, "protocol")
    assert two["ok"]["observation"] == {"text": "step 2"}
    assert unknown["error"]["kind"] == "protocol"
    assert end == {"id": 5, "ok": {}}


def test_a_child_that_the_game_forked_answers_nothing() -> None:
    lines = [{"id": 1, "op": "reset", "data": {"seed": 1, "member": 0}}] + [
        {"id": number, "op": "step", "data": {"do": do}}
        for number, do in enumerate(("fork", "go", "fork", "go"), start=2)
    ]
    hello, _, *steps = answers(*(json.dumps(line) + "\n" for line in lines))
    assert hello["id"] == 0
    assert [(step["id"], step["ok"]["observation"]["text"]) for step in steps] == [
        (2, "parent"), (3, "step 2"), (4, "parent"), (5, "step 4")
    ]  # fmt: skip


def test_the_worker_and_blackjack_keep_to_python_3_8() -> None:
    import ast

    from mtrl_cli.tasks.blackjack import game, text
    from mtrl_cli.tasks.blackjack import program as blackjack

    for module in (worker, game, text, blackjack):
        assert module.__file__ is not None
        tree = ast.parse(Path(module.__file__).read_text(), feature_version=(3, 8))
        assert any(
            isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body
        ), "annotations that 3.8 cannot evaluate"
