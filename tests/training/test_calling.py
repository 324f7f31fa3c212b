"""A model that makes no call which could be executed: the share, and the cause, told once."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mtrl_cli.chat.tokenizer import load_tokenizer
from mtrl_cli.rollout.trajectory import CallRecord, Stop, Trajectory, Turn
from mtrl_cli.testing.policy_server import ScriptedPolicyServer
from mtrl_cli.training.events import Notice
from mtrl_cli.training.telling.calling import Kind, Turns, advice, judged
from tests.rollout.helpers import admission
from tests.training.helpers import tokens_of
from tests.training.runs import train_on

TOOLS = ["play", "stop"]


def call(name: str = "play", answer: str = "16", *, error: bool = False) -> CallRecord:
    return CallRecord(name, answer, 0.0, False, error, {})


def game(stop: Stop, *turns: Turn) -> Trajectory:
    facts = admission(size=1, group=0).member(0)
    return Trajectory(facts, tokens_of([]), opening=(), turns=list(turns), stop=stop)


PLAYED = game(Stop.DONE, Turn("", 9, (call(),)), Turn("", 9, (call(), call("stop"))))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (game(Stop.ANSWER, Turn("I will play.\nHit!", 5, ())),
         "hold no call, such as 'I will play. Hit!': let the task's prompt ask"),
        (game(Stop.ANSWER, Turn('[play(action="hit")]', 5, ())),
         "hold a call that server.renderer: qwen3 does not read, such as '[play(action=\"hit\")]'"),
        (game(Stop.ANSWER, Turn("<function=stop>", 5, ())), "server.renderer: qwen3 does not read"),
        (game(Stop.TURN_TOKENS, Turn('<tool_call>{"name": "pl', 64, ())),
         "were cut by budget.turn_tokens before"),
        (game(Stop.TRAJECTORY_TOKENS, Turn("so", 2, ())), "cut by budget.trajectory_tokens before"),
        (game(Stop.CONTEXT, Turn("so", 2, ())), "were cut by server.context before"),
        (game(Stop.ANSWER, Turn("", 5, (call("", "No JSON. Call play()", error=True),))),
         "hold a call that cannot be read; the model was told: 'No JSON. Call play()'"),
        (game(Stop.ANSWER, Turn("", 5, (call(), call("hit", "None", error=True)))),
         "call a tool that there is not, such as 'hit'; there is: play, stop"),
        (game(Stop.MAX_TURNS, Turn("", 5, (call("play", "No argument 'x'", error=True),))),
         "hold a call that is refused; the model was told: 'No argument 'x''"),
        (game(Stop.ANSWER, Turn("y" * 900, 5, ())), f"such as '{'y' * 100}…'"),
    ],
)  # fmt: skip
def test_the_cause_is_named(wrong: Trajectory, says: str) -> None:
    turns = Turns(judged(PLAYED, TOOLS))  # 2 that were executed
    for _ in range(38):
        turns.add(judged(wrong, TOOLS))
    told = advice(turns, TOOLS, "qwen3")
    assert told is not None
    assert told.startswith("95% of 40 turns end in no tool call that could be executed; 38 of them")
    assert says in told
    turns.add(judged(PLAYED, TOOLS))  # 38 of 42
    assert advice(turns, TOOLS, "qwen3") is None


@pytest.mark.parametrize("stop", [Stop.ANSWER, Stop.TURN_TOKENS])
@pytest.mark.parametrize("text", ["Hm.", '{"name": "play"} </tool_call>'])
def test_of_the_embedded_model_it_is_told_that_it_is_one_for_blackjack(
    stop: Stop, text: str
) -> None:
    turns = Turns(turn for _ in range(20) for turn in judged(game(stop, Turn(text, 5, ())), TOOLS))
    told = advice(turns, TOOLS, "qwen3", embedded=True)
    assert told is not None
    assert "renderer" not in told
    assert ("blackjack's words alone" in told) is (stop is Stop.ANSWER)


def test_the_turn_in_which_an_episode_failed_was_executed() -> None:
    refused = Turn("", 5, (call("play", "No argument 'x'", error=True),))
    for stop in (Stop.ENV_FAILURE, Stop.TIMEOUT):
        kinds = [one.kind for one in judged(game(stop, refused, refused), TOOLS)]
        assert kinds == [Kind.REFUSED, Kind.EXECUTED]


def test_the_most_frequent_cause_is_named() -> None:
    silent, cut = Turn("so", 2, ()), Turn("so", 2, ())
    turns = Turns()
    for stop, turn, times in ((Stop.ANSWER, silent, 9), (Stop.TURN_TOKENS, cut, 12)):
        for _ in range(times):
            turns.add(judged(game(stop, turn), TOOLS))
    told = advice(turns, TOOLS, "qwen3")
    assert told is not None
    assert "100% of 21 turns" in told
    assert "12 of them were cut by budget.turn_tokens" in told


WRITTEN = "I stand."
TOKENIZER = load_tokenizer("mtrl-tiny")


@pytest.mark.parametrize(
    ("overrides", "turns", "more"),
    [
        (("train.steps=7",), 20, "; more: mtrl trajectory {run} --runs-dir {runs}"),
        (("train.steps=1", "eval.games=24"), 24, ""),  # an evaluation is not saved
    ],
    ids=["steps of 4 turns", "an evaluation"],
)
async def test_a_run_tells_it_once(
    tmp_path: Path, overrides: Sequence[str], turns: int, more: str
) -> None:
    ids = [*TOKENIZER.encode(WRITTEN), TOKENIZER.convert_tokens_to_ids("<|im_end|>")]

    def answers(tokens: Any, seed: int) -> tuple[list[int], list[float]]:
        return ids, [-0.5] * len(ids)

    told: list[str] = []

    def hear(event: object) -> None:
        if isinstance(event, Notice) and "tool call" in event.text:
            told.append(event.text)

    async with ScriptedPolicyServer(sampler=answers) as server:
        small = ("group.size=4", *overrides)
        run = await train_on(server.url, tmp_path / "runs", *small, observer=hear)
    assert told == [
        f"100% of {turns} turns end in no tool call that could be executed; {turns} of them hold no"
        f" call, such as '{WRITTEN}': let the task's prompt ask for one, and see whether the model"
        f" was trained to call tools{more.format(run=run.run, runs=tmp_path / 'runs')}"
    ]
