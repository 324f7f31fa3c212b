"""The records office: what solves it, what does not, several calls a turn, the scratchpad; the same
words in this process, behind a server and as a sandbox's program."""

import ast
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mtrl_cli.chat.renderer import RendererChat
from mtrl_cli.chat.tokenizer import load_tokenizer
from mtrl_cli.config.compose import compose
from mtrl_cli.config.resolve import resolve
from mtrl_cli.envs.openenv import OpenEnvFactory
from mtrl_cli.rollout.admission import Budget, GroupAdmission
from mtrl_cli.rollout.client import ClientMultiTurnRollout
from mtrl_cli.rollout.events import ignore
from mtrl_cli.rollout.ports import Sample, SampleRequest, SamplingParams
from mtrl_cli.rollout.resources import RolloutResources
from mtrl_cli.rollout.trajectory import Stop, Trajectory
from mtrl_cli.runs.stop import StopRequest
from mtrl_cli.tasks.records import game, program
from mtrl_cli.tasks.records.game import Office
from mtrl_cli.tasks.records.program import RecordsProgram
from mtrl_cli.tasks.records.task import Records
from mtrl_cli.testing.policy_server import ScriptedPolicyServer
from mtrl_cli.training.run import train
from tests.training.runs import SMALL, trajectories

ENVIRONMENT = "mtrl_cli.tasks.records.env:RecordsEnvironment"
CHAT = RendererChat(load_tokenizer("mtrl-tiny"))
END = CHAT.stop_ids[0]
SEED = 12


def call(name: str, **arguments: Any) -> str:
    body = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{body}\n</tool_call>"


class Says:
    """A policy that says one text a turn, the last one for ever."""

    def __init__(self, turns: Sequence[str]) -> None:
        self.turns = list(turns)

    async def sample(self, request: SampleRequest) -> Sample:
        text = self.turns.pop(0) if len(self.turns) > 1 else self.turns[0]
        tokens = [*CHAT.tokenizer.encode(text), END]
        assert len(tokens) <= request.max_tokens
        return Sample(tokens, [-0.5] * len(tokens), "stop")


async def play(*turns: str, seed: int = SEED, max_turns: int = 12) -> Trajectory:
    task, resources = Records(), RolloutResources()
    envs = OpenEnvFactory(ENVIRONMENT, task)
    rollout = ClientMultiTurnRollout(
        policy=Says(turns), chat=CHAT, task=task, envs=envs, harnesses=task, resources=resources
    )
    admission = GroupAdmission(
        run="r",
        stream="train",
        run_seed=0,
        group=0,
        size=1,
        task=task.sample(seed),
        policy="p",
        policy_step=0,
        sampling=SamplingParams(),
        budget=Budget(512, 8192, 8192, max_turns, 60),
    )
    [group] = await rollout.run([admission])
    await envs.close()
    assert resources.live == ()
    return group.members[0]


def answers(trajectory: Trajectory) -> list[str]:
    return [call.answer for turn in trajectory.turns for call in turn.calls]


def wrong_invoice(office: Office) -> tuple[str, int]:
    """The invoice of the customer in question that is not its order's due, and the due; found from
    the tables alone, as a player would."""
    asked = office.brief()
    name, city = asked.split(" of ")[1].split(" is ")[0].split(" in ")
    [customer] = [
        row["id"]
        for row in office.tables["customers"]
        if (row["name"], row["city"]) == (name, city)
    ]
    prices = {row["id"]: row["price"] for row in office.tables["prices"]}
    amounts = {row["order"]: (row["id"], row["amount"]) for row in office.tables["invoices"]}
    found = [
        (amounts[row["id"]][0], row["quantity"] * prices[row["item"]])
        for row in office.tables["orders"]
        if row["customer"] == customer
        and amounts[row["id"]][1] != row["quantity"] * prices[row["item"]]
    ]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("seed", range(40))
def test_every_office_has_one_answer_and_somebody_elses_mistake(seed: int) -> None:
    office = Office(seed)
    invoice, due = wrong_invoice(office)
    amounts = {row["id"]: row["amount"] for row in office.tables["invoices"]}
    dues = {
        row["id"]: office.due(next(o for o in office.tables["orders"] if o["id"] == row["order"]))
        for row in office.tables["invoices"]
    }
    assert sum(amounts[name] != dues[name] for name in amounts) == 2
    assert all(amount > 0 for amount in amounts.values())
    assert Office(seed).tables == office.tables
    assert office.correct(invoice, due) == f"{invoice}: amount {due}, was {amounts[invoice]}."
    assert office.submit() == 1.0


async def test_solving_it_gets_1_with_several_calls_a_turn_answered_in_order() -> None:
    office = Office(SEED)
    invoice, due = wrong_invoice(office)
    played = await play(
        call("find", table="customers", column="id", value="*")
        + call("find", table="prices", column="id", value="*"),
        call("note", text=f"{invoice} is due {due}"),
        call("correct", invoice=invoice, amount=due) + call("submit"),
    )
    assert (played.reward, played.stop) == (1.0, Stop.DONE)
    assert [len(turn.calls) for turn in played.turns] == [2, 1, 2]
    said = answers(played)
    assert said[0] == "1. " + office.find("customers", "id", "*")
    assert said[1] == "2. " + office.find("prices", "id", "*")
    assert said[2] == "3. Noted."
    assert said[3].startswith(f"4. {invoice}: amount {due}, was ")
    assert said[3].endswith(f"\nNotes: {invoice} is due {due}")
    assert said[4].startswith("5. Submitted: right.\nNotes: ")


@pytest.mark.parametrize("mistake", ["nothing", "amount", "another", "both"])
async def test_a_wrong_submission_gets_0(mistake: str) -> None:
    office = Office(SEED)
    invoice, due = wrong_invoice(office)
    other = next(row for row in office.tables["invoices"] if row["id"] != invoice)
    right = call("correct", invoice=invoice, amount=due)
    spoil = call("correct", invoice=other["id"], amount=other["amount"] + 1)
    turn = {
        "nothing": "",
        "amount": call("correct", invoice=invoice, amount=due + 1),
        "another": spoil,
        "both": right + spoil,
    }[mistake]
    played = await play(turn + call("submit"))
    assert (played.reward, played.stop) == (0.0, Stop.DONE)
    assert answers(played)[-1].endswith("Submitted: wrong.")


async def test_after_submit_nothing_is_executed() -> None:
    played = await play(call("submit") + call("note", text="late"))
    assert [c.name for c in played.turns[0].calls] == ["submit"]
    assert played.reward == 0.0


async def test_invalid_calls_are_answered_and_the_episode_goes_on() -> None:
    played = await play(
        call("find", table="safes", column="id", value="*")
        + call("find", table="prices", column="quantity", value="3")
        + call("find", table="prices")
        + call("correct", invoice="I99", amount=3)
        + call("correct", invoice="I31", amount="three")
        + call("burn")
        + '<tool_call>\n{"name": "note"\n</tool_call>',
        call("submit"),
    )
    first = played.turns[0].calls
    assert [c.error for c in first] == [True, True, True, False, True, True, True]
    assert first[1].answer == "2. The columns of prices are id, price."
    assert first[3].answer == "4. There is no invoice I99."
    assert played.tool_errors == 6
    assert played.stop is Stop.DONE


async def test_the_scratchpad_keeps_the_last_notes_of_one_trajectory() -> None:
    notes = "".join(call("note", text=f"n{number}") for number in range(8))
    look = call("find", table="prices", column="id", value="none")
    played = await play(notes + look, call("submit"))
    assert answers(played)[8].endswith("\nNotes: n2; n3; n4; n5; n6; n7")
    assert "Notes" not in answers(await play(look, call("submit")))[0]


async def test_an_episode_without_a_submission_is_unfinished() -> None:
    for turns, stop in (
        ((call("note", text="x"),), Stop.MAX_TURNS),
        (("I am done.",), Stop.ANSWER),
    ):
        played = await play(*turns)
        assert (played.reward, played.stop) == (-1.0, stop)
    assert len((await play(call("note", text="x"))).turns) == 12


async def test_the_sandboxs_program_says_the_same() -> None:
    task, calls = Records(), [("find", {"table": "orders", "column": "id", "value": "*"})]
    calls += [("correct", {"invoice": "I31", "amount": 1}), ("submit", {})]
    played = await play(*(call(name, **arguments) for name, arguments in calls))
    there = RecordsProgram()
    brief = there.reset(**task.reset_arguments(task.sample(SEED), 0))["text"]
    assert played.opening[1]["content"] == brief
    replies = [there.step(name, arguments) for name, arguments in calls]
    assert [f"{i}. {r['observation']['text']}" for i, r in enumerate(replies, 1)] == answers(played)
    assert [r["done"] for r in replies] == [False, False, True]
    assert sum(r["reward"] for r in replies) == played.reward == 0.0


@pytest.mark.parametrize("module", [game, program])
def test_what_goes_into_a_sandbox_needs_no_more_than_python_3_8(module: Any) -> None:
    """Syntax of 3.8, annotations that are not evaluated, and nothing but the standard library."""
    text = Path(module.__file__).read_text()
    tree = ast.parse(text, feature_version=(3, 8))
    assert "from __future__ import annotations" in text
    imported = {
        alias.name if isinstance(node, ast.Import) else str(node.module)
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert imported <= {"__future__", "random", "typing", "mtrl_cli.tasks.records.game"}


async def test_a_run_on_it_trains(tmp_path: Path) -> None:
    """Members of a group that submit the right thing, the wrong thing, or nothing at all."""
    asked: dict[str, str] = {}

    def player(tokens: Sequence[int], seed: int) -> tuple[list[int], list[float]]:
        text = CHAT.tokenizer.decode(tokens)
        if "Submitted" in text or seed % 3 == 0:
            said = "I am done."
        elif "was" in text.rpartition("Notes:")[0] or seed % 3 == 1:
            said = call("submit")
        else:
            said = call("note", text="first") + call("find", table="prices", column="id", value="*")
        asked[said[:24]] = text
        ids = [*CHAT.tokenizer.encode(said), END]
        return ids, [-0.25] * len(ids)

    async with ScriptedPolicyServer(sampler=player) as server:
        composed = compose(
            "records",
            [
                *SMALL,
                f'server.base_url="{server.url}"',
                f'run.dir="{tmp_path}"',
                "group.size=6",
                "group.per_step=2",
                "train.steps=2",
            ],
        )
        run = await train(resolve(composed), composed.yaml, observer=ignore, stop=StopRequest())
        assert server.applied("optim_step") == 2
    assert (run.status, run.steps, run.quarantined) == ("finished", 2, ())
    played = trajectories(run, 1)
    assert len(played) == 12
    assert {member["reward"] for member in played} <= {-1.0, 0.0}
    assert len({member["reward"] for member in played}) == 2
    assert len(asked) == 3
