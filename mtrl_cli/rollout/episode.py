"""One episode: sample, execute, answer, until something ends it.

The order of checks after each sampled turn is part of mtrl's contract, and the code below is
numbered the same way:

1. The turn stopped at its length → the budget that was binding: ``turn_tokens``,
   ``trajectory_tokens`` or ``context``.
2. No tool call → ``answer``.
3. The calls are executed in call order and answered in call order. A bad call is answered with
   its error. After a call that ends the episode the rest are not executed.
4. The environment said done → ``done``. It is never stepped again.
5. The turn cap is reached → ``max_turns``.
6. No room for the bridge and one more token → ``trajectory_tokens`` or ``context``. Answers of
   more than `LONGEST_TOKEN` characters for each token of the budget have none, and are not
   encoded; an opening of more is the environment's fault.
7. The bridge is appended, and the next turn is sampled.

An episode that ends without ``done`` gets the task's ``unfinished_reward`` instead of what it
has collected, or ending early would beat playing. One that fails gets no reward at all.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mtrl_cli.rollout.admission import Admission, Budget
from mtrl_cli.rollout.events import MemberFinished, Observer, TurnSampled
from mtrl_cli.rollout.held import borrow_environment, borrow_harness
from mtrl_cli.rollout.ports import (
    Chat,
    ContextOverflow,
    Environment,
    EnvironmentFactory,
    EnvironmentFault,
    Harness,
    HarnessFactory,
    InfrastructureFailure,
    Message,
    Policy,
    PolicyFailure,
    RefusedTrajectory,
    SampleRequest,
    Task,
    ToolCall,
    ToolError,
)
from mtrl_cli.rollout.resources import RolloutResources, Scope
from mtrl_cli.rollout.settle import is_being_cancelled
from mtrl_cli.rollout.task_fault import own_code, plain
from mtrl_cli.rollout.tokens import TokenSequence
from mtrl_cli.rollout.trajectory import FAILED, CallRecord, Stop, Trajectory, Turn


@dataclass(frozen=True, slots=True)
class Parts:
    """What episodes are played with; shared by all of them."""

    policy: Policy
    chat: Chat
    task: Task
    envs: EnvironmentFactory
    harnesses: HarnessFactory | None
    resources: RolloutResources
    observer: Observer


LONGEST_TOKEN = 128
"""Characters that a token is taken to stand for at most. Text that could not fit the room of its
trajectory even so is not encoded: 10 MB of it would hold up every other trajectory for seconds."""


async def play(admission: Admission, parts: Parts) -> Trajectory:
    """Play one episode to its end. Failures are recorded in the trajectory, never raised.

    Whatever happens, also when the caller is cancelled, what was borrowed is returned first.
    """
    trajectory = Trajectory(admission, TokenSequence(()), opening=())
    async with parts.resources.scope(admission.name) as scope:
        await _play_or_fail(trajectory, scope, parts)
    trajectory.reward = _reward(trajectory, parts.task)
    _report(trajectory, parts.observer)
    return trajectory


async def _play_or_fail(trajectory: Trajectory, scope: Scope, parts: Parts) -> None:
    seconds = trajectory.admission.group.budget.deadline
    try:
        async with asyncio.timeout(seconds) as deadline:
            trajectory.stop = await _turns(trajectory, scope, parts)
    except asyncio.CancelledError as error:
        if is_being_cancelled():
            raise
        raise RuntimeError(
            f"{trajectory.admission.name}: its policy, environment or harness cancelled itself"
        ) from error
    except TimeoutError:
        if not deadline.expired():
            raise
        _fail(trajectory, Stop.TIMEOUT, f"not finished within budget.deadline = {seconds:g} s")
    except (EnvironmentFault, InfrastructureFailure) as error:
        _fail(trajectory, Stop.ENV_FAILURE, str(error))
        trajectory.trace, trajectory.interrupts = error.trace, error.interrupts
    except PolicyFailure as error:
        _fail(trajectory, Stop.POLICY_FAILURE, str(error))
        trajectory.permanent = error.permanent
    except RefusedTrajectory as error:
        _fail(trajectory, Stop.POLICY_FAILURE, str(error))
        trajectory.refusal = error.reason


async def _turns(trajectory: Trajectory, scope: Scope, parts: Parts) -> Stop:
    admission = trajectory.admission
    group, budget, chat, task = admission.group, admission.group.budget, parts.chat, parts.task
    longest = LONGEST_TOKEN * _window(budget)[0]

    since = time.monotonic()
    try:
        environment = await borrow_environment(scope, parts.envs)
        observation = await environment.reset(group.task, admission.member)
    finally:
        trajectory.seconds_environment += time.monotonic() - since
    harness = await borrow_harness(scope, parts.harnesses, task, group.harness)
    opening = await harness.open(group.task, admission.member, observation)
    with own_code(*harness.opener):  # what it returned may be messages that nobody can render
        _refuse_endless(opening, longest)
        prompt = chat.prompt(opening, task.tools)
        trajectory.opening = plain(opening)
    trajectory.tokens = tokens = TokenSequence(prompt)

    seed_of = admission.turn_seeds()
    room, binding = _room(budget, len(tokens))
    if room < 1:
        return binding
    for turn in range(budget.max_turns):
        request = SampleRequest(
            policy=group.policy,
            tokens=tokens.ids,
            max_tokens=room,
            stop_ids=chat.stop_ids,
            seed=seed_of(turn),
            sampling=group.sampling,
        )
        since = time.monotonic()
        try:
            sample = await parts.policy.sample(request)
        except ContextOverflow:
            return Stop.CONTEXT
        finally:
            trajectory.seconds_policy += time.monotonic() - since
        tokens.append_sampled(sample, group.policy, room, chat.vocabulary)
        sampled = len(sample.tokens)
        said = chat.read(sample.tokens, task.tools)
        parts.observer(TurnSampled(group.group, admission.member, turn, sampled, group.stream))

        # 1. and 2.
        cut = sample.stop_reason == "length"
        calls = () if cut else await harness.calls(said)
        if not calls:
            trajectory.turns.append(Turn(said.text, sampled, ()))
            return binding if cut else Stop.ANSWER
        # 3.
        since = time.monotonic()
        answered: list[CallRecord] = []
        try:
            await _execute(calls, environment, harness, answered)
        finally:
            # Where it failed, too: the turn that it failed at is what one looks for.
            trajectory.turns.append(Turn(said.text, sampled, tuple(answered)))
            trajectory.seconds_environment += time.monotonic() - since
        # 4.
        if answered[-1].done:
            return Stop.DONE
        # 5.
        if turn + 1 == budget.max_turns:
            return Stop.MAX_TURNS
        # 6.
        if sum(len(call.answer) for call in answered) > longest:
            return _window(budget)[1]
        bridge = chat.bridge(sample.tokens, _answers(answered))
        room, binding = _room(budget, len(tokens) + len(bridge))
        if room < 1:
            return binding
        # 7.
        tokens.append_bridge(bridge)
    return Stop.MAX_TURNS


def _window(budget: Budget) -> tuple[int, Stop]:
    """How many tokens a trajectory may hold, and the limit that says so."""
    if budget.context < budget.trajectory_tokens:
        return budget.context, Stop.CONTEXT
    return budget.trajectory_tokens, Stop.TRAJECTORY_TOKENS


def _refuse_endless(opening: Sequence[Message], most: int) -> None:
    """Raises: EnvironmentFault: it has more than ``most`` characters."""
    length = _characters(opening)
    if length > most:
        raise EnvironmentFault(
            f"the episode opens with {length:,} characters, more than {most:,}, which is all that"
            " its budget could hold: shorten the task's messages, or raise budget.trajectory_tokens"
        )


def _characters(value: object) -> int:
    """Of all texts in plain data."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, (list, tuple)):
        return sum(map(_characters, value))
    return sum(map(_characters, value.values())) if isinstance(value, Mapping) else 0


def _room(budget: Budget, used: int) -> tuple[int, Stop]:
    """How many tokens the next turn may sample, and the limit that says so."""
    room, binding = budget.turn_tokens, Stop.TURN_TOKENS
    if budget.trajectory_tokens - used < room:
        room, binding = budget.trajectory_tokens - used, Stop.TRAJECTORY_TOKENS
    if budget.context - used < room:
        room, binding = budget.context - used, Stop.CONTEXT
    return room, binding


async def _execute(
    calls: Sequence[ToolCall],
    environment: Environment,
    harness: Harness,
    records: list[CallRecord],
) -> None:
    """Execute a turn's calls in order, each with its record; nothing after the call that ends the
    episode."""
    for call in calls:
        text, reward, done, error = call.error or "", 0.0, False, call.error is not None
        if not error:
            try:
                text, reward, done = await environment.step(call)
            except ToolError as refused:
                text, error = str(refused), True
        answer = await harness.answer(call, text)
        records.append(CallRecord(call.name, answer, reward, done, error, call.arguments))
        if done:
            break


def _answers(calls: Sequence[CallRecord]) -> list[Message]:
    return [{"role": "tool", "name": call.name, "content": call.answer} for call in calls]


def _fail(trajectory: Trajectory, stop: Stop, failure: str) -> None:
    trajectory.stop = stop
    trajectory.failure = failure


def _reward(trajectory: Trajectory, task: Task) -> float | None:
    if trajectory.stop in FAILED:
        return None
    if trajectory.stop is not Stop.DONE:
        return task.unfinished_reward
    return sum(call.reward for turn in trajectory.turns for call in turn.calls)


def _report(trajectory: Trajectory, observer: Observer) -> None:
    observer(
        MemberFinished(
            group=trajectory.admission.group.group,
            member=trajectory.admission.member,
            stop=trajectory.stop,
            reward=trajectory.reward,
            turns=len(trajectory.turns),
            tokens=len(trajectory.tokens),
            tool_errors=trajectory.tool_errors,
            failure=trajectory.failure,
            trace=trajectory.trace,
            interrupts=trajectory.interrupts,
            stream=trajectory.admission.group.stream,
        )
    )
