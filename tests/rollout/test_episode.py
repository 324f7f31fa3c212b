"""One episode: the order of its checks, every way it can end, and what it is then worth."""

import asyncio
from dataclasses import replace

import pytest

from mtrl_cli.rollout.ports import (
    ContextOverflow,
    EnvironmentFault,
    InfrastructureFailure,
    PolicyFailure,
    StepOutcome,
    ToolError,
)
from mtrl_cli.rollout.tokens import SpanKind
from mtrl_cli.rollout.trajectory import Stop, Trajectory
from mtrl_cli.testing.world import END, NumberChat, Script, World
from tests.rollout.helpers import BUDGET, ScriptedPolicy, admission, play_groups, said

GOING_ON = StepOutcome("30", 0.0, done=False)
WON = StepOutcome("20", 1.0, done=True)


async def play_one(
    policy: ScriptedPolicy, script: Script | None = None, **limits: float
) -> Trajectory:
    world = World(lambda index: script or Script())
    budget = replace(BUDGET, **limits)  # type: ignore[arg-type]
    [group] = await play_groups(policy, admission(budget=budget), world=world, on_failure="drop")
    assert world.live == 0
    assert world.steps_after_end == 0
    [trajectory] = (*group.members, *group.failures)
    return trajectory


async def test_three_turns_hold_three_sampled_spans_as_the_server_returned_them() -> None:
    policy = ScriptedPolicy(said(101, END), said(50, 102, END), said(103, END))
    script = Script(steps=(GOING_ON, GOING_ON, WON))
    trajectory = await play_one(policy, script)

    prompt, bridge = [2, 10, 11, 2], [3, 30, 2]
    assert trajectory.tokens.ids.tolist() == [
        *prompt, 101, END, *bridge, 50, 102, END, *bridge, 103, END,
    ]  # fmt: skip
    assert [span.kind for span in trajectory.tokens.spans] == [
        SpanKind.PROMPT, SpanKind.SAMPLED, SpanKind.BRIDGE, SpanKind.SAMPLED, SpanKind.BRIDGE,
        SpanKind.SAMPLED,
    ]  # fmt: skip
    assert trajectory.tokens.sampled_logprobs.tolist() == pytest.approx(
        [-1.01, -0.01, -0.5, -1.02, -0.01, -1.03, -0.01]
    )
    assert trajectory.stop is Stop.DONE
    assert trajectory.reward == 1.0
    # Each turn was sampled from exactly the tokens before it, under one policy.
    whole = tuple(trajectory.tokens.ids)
    assert [request.tokens for request in policy.requests] == [whole[:4], whole[:9], whole[:15]]
    assert {request.policy for request in policy.requests} == {"policy-0"}
    assert len({request.seed for request in policy.requests}) == 3


async def test_an_end_marker_that_was_not_sampled_is_inserted_by_the_bridge() -> None:
    policy = ScriptedPolicy(said(101), said(102, END))
    trajectory = await play_one(policy, Script(steps=(GOING_ON, WON)))
    assert trajectory.tokens.ids.tolist() == [2, 10, 11, 2, 101, END, 3, 30, 2, 102, END]
    assert [(s.start, s.end) for s, _ in trajectory.tokens.sampled_spans()] == [(4, 5), (9, 11)]


class TestStops:
    async def test_done_keeps_the_rewards_of_all_calls(self) -> None:
        steps = (StepOutcome("30", 0.25, done=False), StepOutcome("20", 0.5, done=True))
        trajectory = await play_one(ScriptedPolicy(said(101, END)), Script(steps=steps))
        assert (trajectory.stop, trajectory.reward) == (Stop.DONE, 0.75)

    async def test_no_tool_call_is_an_answer_with_the_unfinished_reward(self) -> None:
        trajectory = await play_one(ScriptedPolicy(said(50, END)))
        assert (trajectory.stop, trajectory.reward) == (Stop.ANSWER, -1.0)

    async def test_an_empty_completion_is_an_answer_without_trained_tokens(self) -> None:
        trajectory = await play_one(ScriptedPolicy(said()))
        assert (trajectory.stop, trajectory.reward) == (Stop.ANSWER, -1.0)
        assert trajectory.tokens.sampled_count == 0

    async def test_the_turn_cap(self) -> None:
        trajectory = await play_one(
            ScriptedPolicy(said(101, END)), Script(steps=[GOING_ON] * 9), max_turns=3
        )
        assert (trajectory.stop, trajectory.reward) == (Stop.MAX_TURNS, -1.0)
        assert len(trajectory.turns) == 3
        assert trajectory.tokens.spans[-1].kind is SpanKind.SAMPLED

    @pytest.mark.parametrize(
        ("limits", "stop", "asked"),
        [
            ({"turn_tokens": 5}, Stop.TURN_TOKENS, 5),
            ({"trajectory_tokens": 10}, Stop.TRAJECTORY_TOKENS, 6),
            ({"context": 9}, Stop.CONTEXT, 5),
        ],
    )
    async def test_a_cut_turn_names_the_limit_that_was_binding(
        self, limits: dict[str, float], stop: Stop, asked: int
    ) -> None:
        policy = ScriptedPolicy(said(101, stop="length"))
        world_script = Script(steps=(EnvironmentFault("must not be stepped"),))
        trajectory = await play_one(policy, world_script, **limits)
        assert (trajectory.stop, trajectory.reward) == (stop, -1.0)
        assert policy.requests[0].max_tokens == asked

    async def test_done_on_the_last_affordable_token_keeps_its_real_reward(self) -> None:
        trajectory = await play_one(ScriptedPolicy(said(101, END)), trajectory_tokens=6)
        assert (trajectory.stop, trajectory.reward) == (Stop.DONE, 1.0)

    async def test_no_room_for_the_bridge_and_one_more_token(self) -> None:
        policy = ScriptedPolicy(said(101, END), said(101))
        fits = await play_one(policy, Script(steps=(GOING_ON, WON)), trajectory_tokens=10)
        assert fits.stop is Stop.DONE
        full = await play_one(
            ScriptedPolicy(said(101, END)), Script(steps=(GOING_ON, WON)), trajectory_tokens=9
        )
        assert (full.stop, full.reward) == (Stop.TRAJECTORY_TOKENS, -1.0)
        assert full.tokens.ids.tolist() == [2, 10, 11, 2, 101, END]

    async def test_a_prompt_that_fills_the_context_is_never_sampled(self) -> None:
        policy = ScriptedPolicy(said(101, END))
        trajectory = await play_one(policy, context=4)
        assert trajectory.stop is Stop.CONTEXT
        assert policy.requests == []

    async def test_a_server_that_says_the_window_is_full_ends_the_episode(self) -> None:
        policy = ScriptedPolicy(said(101, END), ContextOverflow("window full"))
        trajectory = await play_one(policy, Script(steps=(GOING_ON, WON)))
        assert (trajectory.stop, trajectory.reward) == (Stop.CONTEXT, -1.0)

    async def test_the_deadline(self) -> None:
        script = Script(steps=(WON,), step_seconds=30)
        trajectory = await play_one(ScriptedPolicy(said(101, END)), script, deadline=0.05)
        assert (trajectory.stop, trajectory.reward) == (Stop.TIMEOUT, None)
        assert "budget.deadline = 0.05 s" in str(trajectory.failure)

    @pytest.mark.parametrize(
        "script",
        [
            Script(on_open=InfrastructureFailure("no instance")),
            Script(on_reset=EnvironmentFault("reset raised")),
            Script(steps=(EnvironmentFault("reward is nan"),)),
            Script(steps=(InfrastructureFailure("session lost"),)),
        ],
    )
    async def test_a_failing_environment_has_no_reward(self, script: Script) -> None:
        trajectory = await play_one(ScriptedPolicy(said(101, END)), script)
        assert (trajectory.stop, trajectory.reward) == (Stop.ENV_FAILURE, None)

    async def test_a_failing_policy_has_no_reward(self) -> None:
        trajectory = await play_one(ScriptedPolicy(PolicyFailure("refused", permanent=True)))
        assert (trajectory.stop, trajectory.reward) == (Stop.POLICY_FAILURE, None)
        assert trajectory.permanent

    async def test_a_missing_logprob_refuses_the_trajectory(self) -> None:
        trajectory = await play_one(ScriptedPolicy(said(101, END, logprobs=[-0.1])))
        assert (trajectory.stop, trajectory.reward) == (Stop.POLICY_FAILURE, None)
        assert trajectory.refusal == "bad_logprobs"

    async def test_a_token_that_the_tokenizer_does_not_have_refuses_the_trajectory(self) -> None:
        unknown = NumberChat.vocabulary
        trajectory = await play_one(ScriptedPolicy(said(101, unknown, END)))
        assert (trajectory.stop, trajectory.reward) == (Stop.POLICY_FAILURE, None)
        assert trajectory.refusal == "unknown_token"

    async def test_more_tokens_than_a_turn_may_have_refuse_the_trajectory(self) -> None:
        policy = ScriptedPolicy(lambda request: said(*[101] * (request.max_tokens + 1)))
        trajectory = await play_one(policy)
        assert trajectory.refusal == "too_many_tokens"
        assert trajectory.turns == []


class TestToolCalls:
    async def test_calls_of_one_turn_run_in_order_and_are_answered_in_order(self) -> None:
        steps = (StepOutcome("31", 0.5, done=False), StepOutcome("32", 0.25, done=False), WON)
        policy = ScriptedPolicy(said(101, 102, END), said(103, END))
        trajectory = await play_one(policy, Script(steps=steps))
        assert [call.answer for call in trajectory.turns[0].calls] == ["31", "32"]
        assert policy.requests[1].tokens[-4:] == (3, 31, 32, 2)
        assert trajectory.reward == 1.75

    async def test_nothing_runs_after_the_call_that_ends_the_episode(self) -> None:
        policy = ScriptedPolicy(said(101, 102, 103, END))
        trajectory = await play_one(policy, Script(steps=(GOING_ON, WON)))
        assert [call.done for call in trajectory.turns[0].calls] == [False, True]
        assert trajectory.stop is Stop.DONE

    async def test_a_bad_call_is_answered_and_the_episode_goes_on(self) -> None:
        policy = ScriptedPolicy(said(200, END), said(101, END))
        trajectory = await play_one(policy)
        assert policy.requests[1].tokens[-3:] == (3, 99, 2)
        assert (trajectory.stop, trajectory.reward) == (Stop.DONE, 1.0)
        assert (trajectory.tool_calls, trajectory.tool_errors) == (2, 1)

    async def test_a_call_that_the_environment_refuses_is_answered_too(self) -> None:
        policy = ScriptedPolicy(said(101, END), said(102, END))
        trajectory = await play_one(policy, Script(steps=(ToolError("98"), WON)))
        assert policy.requests[1].tokens[-3:] == (3, 98, 2)
        assert trajectory.tool_errors == 1


async def test_a_cancelled_episode_closes_its_environment_before_it_goes() -> None:
    world = World(lambda index: Script(step_seconds=30))
    playing = asyncio.create_task(
        play_groups(ScriptedPolicy(said(101, END)), admission(size=3), world=world)
    )
    while world.live < 3:
        await asyncio.sleep(0.001)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert world.live == 0


async def test_an_answer_of_ten_megabytes_is_not_encoded() -> None:
    """Its episode ends as one whose answer does not fit, and the others go on meanwhile."""
    policy = ScriptedPolicy(said(101, END), said(102, END))
    endless = StepOutcome("9" * 10_000_000, 0.0, done=False)
    trajectory = await play_one(policy, Script(steps=(endless, WON)))
    assert trajectory.stop is Stop.TRAJECTORY_TOKENS
    assert len(trajectory.turns) == 1
    assert len(policy.requests) == 1
    policy = ScriptedPolicy(said(101, END))
    trajectory = await play_one(policy, Script(steps=(endless, WON)), context=50)
    assert trajectory.stop is Stop.CONTEXT


async def test_an_opening_that_no_window_holds_is_the_environments_fault() -> None:
    policy = ScriptedPolicy(said(101, END))
    trajectory = await play_one(policy, Script(opening="x" * 10_000_000))
    assert trajectory.stop is Stop.ENV_FAILURE
    assert trajectory.failure is not None
    assert "opens with 10,000,0" in trajectory.failure
    assert policy.requests == []
