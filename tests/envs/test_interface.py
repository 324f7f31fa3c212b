"""The rules that every backend's environments keep: the end, rewards, lengths, attribution."""

import re
from collections.abc import Mapping
from typing import Any

import pytest

from mtrl_cli.envs.interface import Reply, Rules, SessionLost, TaskEnvironment, Watch
from mtrl_cli.rollout.ports import (
    EnvironmentFault,
    InfrastructureFailure,
    StepOutcome,
    TaskSample,
    ToolCall,
    ToolError,
)

SAMPLE = TaskSample("s", seed=7)
ACT = ToolCall("act", {})
SUM = Rules()


class Words:
    def reset_arguments(self, sample: TaskSample, member: int) -> Mapping[str, Any]:
        return {"seed": sample.seed, "member": member}

    def action(self, call: ToolCall) -> Mapping[str, Any]:
        return {"do": call.name, **call.arguments}

    def observation_text(self, observation: Mapping[str, Any]) -> str:
        return str(observation["text"])


class Told:
    """A session that answers with what the test gives it."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[Mapping[str, Any]] = []

    async def reset(self, arguments: Mapping[str, Any]) -> Reply:
        self.asked.append(arguments)
        return self.answer()

    async def step(self, action: Mapping[str, Any]) -> Reply:
        self.asked.append(action)
        return self.answer()

    def answer(self) -> Reply:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, Reply)
        return answer

    async def close(self) -> None: ...


def seen(text: str = "text", reward: Any = None, done: Any = False) -> Reply:
    return Reply({"text": text}, reward, done)


async def begun(*answers: Any, rules: Rules = SUM, watch: Watch | None = None) -> TaskEnvironment:
    session = Told(seen("start"), *answers)
    environment = TaskEnvironment(session, Words(), "World", rules, watch or Watch())
    assert await environment.reset(SAMPLE, 3) == "start"
    assert session.asked == [{"seed": 7, "member": 3}]
    return environment


@pytest.mark.parametrize(
    ("reward", "value"), [(None, 0.0), (2, 2.0), (True, 1.0), (-0.5, -0.5), (0, 0.0)]
)
async def test_rewards_that_are_numbers(reward: Any, value: float) -> None:
    environment = await begun(seen("next", reward))
    assert await environment.step(ACT) == StepOutcome("next", value, False)


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), "1.0", "high", [1], 10**400, {}])
async def test_rewards_that_are_none_fail_the_episode(reward: Any) -> None:
    environment = await begun(seen("next", reward))
    with pytest.raises(EnvironmentFault, match=r"^World returned the reward .*, (not|which is)"):
        await environment.step(ACT)


async def test_a_huge_reward_fails_the_episode() -> None:
    """The square of such a one is no number any more: ±1e308 would end the run's statistics."""
    for reward in (1e308, -1e13):
        environment = await begun(seen("next", reward))
        with pytest.raises(
            EnvironmentFault, match=r"returned the reward .*, of more than 1e\+12: "
        ):
            await environment.step(ACT)
    environment = await begun(seen("next", -1e12))
    assert await environment.step(ACT) == StepOutcome("next", -1e12, False)


@pytest.mark.parametrize("done", ["false", [], 0.5, {}])
async def test_an_end_that_is_neither_true_nor_false_fails_the_episode(done: Any) -> None:
    environment = await begun(seen(done=done))
    with pytest.raises(EnvironmentFault, match="for done, not true or false"):
        await environment.step(ACT)


async def test_nothing_steps_after_the_end_also_when_the_last_answer_was_wrong() -> None:
    for last in (seen(done=True), seen(done=True, reward=float("nan"))):
        environment = await begun(last, seen("never"))
        try:
            await environment.step(ACT)
        except EnvironmentFault:
            assert last.reward is not None
        with pytest.raises(EnvironmentFault, match="step after the end of the episode"):
            await environment.step(ACT)


async def test_a_final_reward_is_the_last_ones() -> None:
    answers = (seen(reward=0.25), seen(reward=0.5), seen(reward=0.75, done=True))
    final = await begun(*answers, rules=Rules(reward="final"))
    assert [(await final.step(ACT)).reward for _ in answers] == [0.0, 0.0, 0.75]
    added = await begun(*answers)
    assert [(await added.step(ACT)).reward for _ in answers] == [0.25, 0.5, 0.75]


@pytest.mark.parametrize(
    ("rewards", "rule", "noticed"),
    [
        ((0.25, 0.5, 0.75), "sum", True),
        ((0.1, 0.2, 0.3), "sum", True),  # up to rounding
        ((0.25, 0.5, 0.75), "final", False),
        ((0.25, 0.5, 1.0), "sum", False),
        ((0.0, 0.0, 1.0), "sum", False),
        ((0.0, 0.0, 0.0), "sum", False),
    ],
)
async def test_a_total_on_top_of_its_parts_is_noticed(
    rewards: tuple[float, ...], rule: Any, noticed: bool
) -> None:
    told: list[str] = []
    watch = Watch(told.append)
    for _ in range(2):
        answers = [seen(reward=reward) for reward in rewards[:-1]]
        answers.append(seen(reward=rewards[-1], done=True))
        environment = await begun(*answers, rules=Rules(reward=rule), watch=watch)
        for _ in answers:
            await environment.step(ACT)
    assert watch.counts["rewards_perhaps_counted_twice"] == (2 if noticed else 0)
    assert [text.endswith("write env.reward: final") for text in told] == [True] * noticed


async def test_what_the_model_reads_has_a_greatest_length() -> None:
    told: list[str] = []
    watch = Watch(told.append)
    answers = (seen("x" * 40), seen("y" * 30), ToolError("z" * 31))
    environment = await begun(*answers, rules=Rules(max_observation=30), watch=watch)
    assert (await environment.step(ACT)).text == "x" * 30 + "\n[cut here: 10 more characters]"
    assert (await environment.step(ACT)).text == "y" * 30
    with pytest.raises(ToolError, match=r"^z{30}\n\[cut here: 1 more characters\]$"):
        await environment.step(ACT)
    assert watch.counts == {"observations_cut": 2}
    assert told == ["World: an observation of 40 characters was cut to env.max_observation = 30"]


async def test_a_lost_session_is_infrastructure_and_counted() -> None:
    told: list[str] = []
    watch = Watch(told.append)
    environment = await begun(SessionLost("World: gone"), watch=watch)
    with pytest.raises(InfrastructureFailure, match="World: gone"):
        await environment.step(ACT)
    assert watch.counts == {"sessions_lost": 1}
    assert told == ["a session was lost: World: gone"]


async def test_the_tasks_own_errors_are_named_as_such() -> None:
    environment = await begun(Reply({"no": "text"}))
    told = r"^Words\.observation_text raised KeyError: 'text' \(.*:\d+\)$"
    with pytest.raises(EnvironmentFault, match=told):
        await environment.step(ACT)


WRONG = {
    "reset_arguments": ([1], {1: 2}, None),
    "action": ("hit", None, [("move", 1)]),
    "observation_text": (None, b"seen", 3),
}


@pytest.mark.parametrize(
    ("method", "value"), [(method, value) for method in WRONG for value in WRONG[method]]
)
async def test_what_the_task_returns_by_mistake_is_its_fault(
    method: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = TaskEnvironment(Told(seen(), seen()), Words(), "World", SUM, Watch())
    monkeypatch.setattr(Words, method, lambda self, *given: value)

    async def play() -> None:
        await environment.reset(SAMPLE, 0)
        await environment.step(ACT)

    with pytest.raises(EnvironmentFault) as fault:
        await play()
    wanted = "a string" if method == "observation_text" else "a mapping of names"
    told, place = str(fault.value).rsplit(" (", 1)
    assert told == f"Words.{method} returned {value!r} where {wanted} is needed"
    assert re.fullmatch(r".*test_interface\.py:\d+\)", place)
