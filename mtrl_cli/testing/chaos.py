"""A world that misbehaves on purpose, and keeps its own books.

`Chaos` lends environments and harnesses and samples as a policy, all from scripts that are drawn
from a seed: slow, hanging and failing operations, work that refuses to be cancelled as a thread
does (it ends late, or only when `free` is called), answers that come after their deadline,
completions that break the token rules, bugs. What a script does depends on the seed and on whose
script it is, never on the order of events.

The books are independent of `RolloutResources`: what is live, what is being made, how often each
thing was given back. Whatever a correct core never does is noted in ``violations`` when it
happens: two operations at once on one thing, an operation after the return, a return during an
operation, a step after the end, a harness or a policy of somebody else.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

from mtrl_cli.rollout.admission import GroupAdmission
from mtrl_cli.rollout.lending import Lender
from mtrl_cli.rollout.ports import (
    AssistantTurn,
    ContextOverflow,
    Environment,
    EnvironmentFault,
    Harness,
    InfrastructureFailure,
    Message,
    PolicyFailure,
    Sample,
    SampleRequest,
    StepOutcome,
    TaskSample,
    ToolCall,
    ToolError,
)
from mtrl_cli.testing.world import END

LATEST = 60.0
"""Seconds after which work that refuses cancellation ends, unless it is stuck."""

_BASE = 10
"""An opening names its group and member as the plain tokens group + 10 and member + 10."""


@dataclass(slots=True)
class Thing:
    """One environment or harness as the world knows it."""

    key: str
    script: Random
    made: bool = False
    live: bool = False
    running: str | None = None
    returned: int = 0
    returning: bool = False
    done: bool = False


@dataclass
class Chaos:
    """See the module's docstring. ``trouble`` is how likely an operation is to misbehave."""

    seed: int
    trouble: float = 0.0
    bugs: float = 0.0
    external: bool = False
    things: dict[str, Thing] = field(default_factory=dict)
    making: set[str] = field(default_factory=set)
    raised: list[BaseException] = field(default_factory=list)
    """The bugs that were met."""
    audible: list[float] = field(default_factory=list)
    """When bugs were met that somebody surely waited for: those of the policy. An operation on a
    thing may outlive its waiter."""
    admitted: dict[int, GroupAdmission] = field(default_factory=dict)
    sampling: int = 0
    most_sampling: int = 0
    violations: list[str] = field(default_factory=list)
    _free: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def live(self) -> set[str]:
        """The keys of what exists, or may exist because its making has not ended."""
        return {key for key, thing in self.things.items() if thing.live} | self.making

    @property
    def occupied(self) -> bool:
        """Something hangs or is stuck in an operation or a return."""
        return bool(self.making) or any(t.running or t.returning for t in self.things.values())

    def free(self) -> None:
        """Let everything end that hangs or is stuck."""
        self._free.set()

    def violate(self, what: str) -> None:
        self.violations.append(f"at {_now():.3f} s: {what}")

    # --- lending --------------------------------------------------------------------------------

    def lender(self) -> Lender[Environment]:
        async def make(key: str) -> Environment:
            return ChaosEnvironment(self, await self.make(key))

        return self._lends("env", make)

    def lends_harness(self, metadata: Mapping[str, Any]) -> Lender[Harness]:
        async def make(key: str) -> Harness:
            return ChaosHarness(self, await self.make(key), metadata)

        return self._lends("harness", make)

    def _lends(self, kind: str, make: Callable[[str], Awaitable[Any]]) -> Lender[Any]:
        return Lender(
            kind,
            make,
            lambda held: self.give_back(held.thing),
            external=self.external,
            place="chaos",
            identify=lambda held: f"id-of-{held.thing.key}",
            remedy=lambda name: f"remove {name}",
        )

    async def make(self, key: str) -> Thing:
        owner = key.rpartition("-")[0]
        thing = self.things[key] = Thing(key, Random(f"{self.seed}/{owner}"))
        self.making.add(key)
        try:
            await self.act(thing, "make", InfrastructureFailure)
        finally:
            self.making.discard(key)
        thing.made = thing.live = True
        return thing

    async def give_back(self, thing: Thing) -> None:
        thing.returned += 1
        if thing.returned > 1:
            self.violate(f"{thing.key} was given back {thing.returned} times")
        if thing.running:
            self.violate(f"{thing.key} was given back during its {thing.running}")
        thing.returning = True
        try:
            await self._spend(thing.script)
        finally:
            thing.returning = False
        if thing.script.random() < self.trouble:
            raise thing.script.choice((OSError("close failed"), asyncio.CancelledError()))
        thing.live = False

    # --- misbehaving ----------------------------------------------------------------------------

    async def act(self, thing: Thing, what: str, *failures: type[Exception]) -> None:
        """Spend time on one operation, and fail, as the thing's script says."""
        if thing.returned:
            self.violate(f"{what} on {thing.key} after it was given back")
        if thing.running:
            self.violate(f"{what} on {thing.key} during its {thing.running}")
        thing.running = what
        try:
            await self._spend(thing.script)
        finally:
            thing.running = None
        if thing.script.random() < self.bugs:
            self.bug(thing.script, f"{what} on {thing.key}")
        if thing.script.random() < self.trouble / 2:
            raise thing.script.choice(failures)("90")

    def bug(self, script: Random, where: str) -> None:
        """Raise what is nobody's failure: an error, or a cancellation that nobody asked for."""
        bug: BaseException = ZeroDivisionError(f"a bug in {where}")
        if script.random() < 0.25:
            bug = asyncio.CancelledError(f"a bug in {where}")
        self.raised.append(bug)
        raise bug

    async def _spend(self, script: Random) -> None:
        manner, seconds = script.random(), script.random()
        if manner >= self.trouble:
            await asyncio.sleep(seconds if manner > 0.6 else 0)
        elif manner < self.trouble * 0.4:
            await asyncio.sleep(12 * seconds)
        elif manner < self.trouble * 0.6:
            await self._free.wait()
        elif manner < self.trouble * 0.85:
            await _refuse_cancellation(asyncio.sleep(LATEST * seconds))
        else:
            await _refuse_cancellation(self._free.wait())

    # --- the policy -----------------------------------------------------------------------------

    async def sample(self, request: SampleRequest) -> Sample:
        group, member = (token - _BASE for token in request.tokens[1:3])
        if request.policy != self.admitted[group].policy:
            self.violate(f"group {group}, member {member} was sampled from {request.policy}")
        script = Random(f"{self.seed}/{request.seed}")
        self.sampling += 1
        self.most_sampling = max(self.most_sampling, self.sampling)
        try:
            await asyncio.sleep(script.random() * script.choice((0, 0.1, 2)))
            if script.random() < self.trouble / 4:
                await self._free.wait()  # until the deadline
        finally:
            self.sampling -= 1
        if script.random() < self.bugs:
            self.audible.append(_now())
            self.bug(script, f"the sampling of group {group}")
        return self._completion(request, script)

    def _completion(self, request: SampleRequest, script: Random) -> Sample:
        calls = [script.randint(100, 199) for _ in range(script.choice((0, 1, 1, 1, 1, 2)))]
        if script.random() < 0.1:
            calls = [200]
        tokens = [script.randint(10, 99), *calls, END]
        logprobs = [-script.random() for _ in tokens]
        policy: str | None = request.policy
        echo = None
        if script.random() < self.trouble / 2:
            match script.randrange(8):
                case 0:
                    raise PolicyFailure("overloaded")
                case 1:
                    raise PolicyFailure("unknown policy", permanent=True)
                case 2:
                    raise ContextOverflow("window full")
                case 3:
                    logprobs.pop()
                case 4:
                    logprobs[0] = math.nan
                case 5:
                    logprobs[-1] = 0.5
                case 6:
                    policy = "another policy"
                case _:
                    echo = [*request.tokens, *tokens[:-1], 77]
        stop = "length" if script.random() < 0.05 else "stop"
        return Sample(tokens, logprobs, "length" if stop == "length" else "stop", policy, echo)


class ChaosEnvironment:
    """`rollout.ports.Environment`."""

    def __init__(self, world: Chaos, thing: Thing) -> None:
        self.thing = thing
        self._world = world

    async def reset(self, sample: TaskSample, member: int) -> str:
        await self._world.act(self.thing, "reset", EnvironmentFault, InfrastructureFailure)
        return f"{_BASE + sample.seed} {_BASE + member}"

    async def step(self, call: ToolCall) -> StepOutcome:
        if self.thing.done:
            self._world.violate(f"{self.thing.key} was stepped after its episode was done")
        failures = (EnvironmentFault, InfrastructureFailure, ToolError, ToolError)
        await self._world.act(self.thing, "step", *failures)
        self.thing.done = self.thing.script.random() < 0.4
        return StepOutcome("20", self.thing.script.random(), self.thing.done)

    async def close(self) -> None:
        raise AssertionError("the lender gives back, nobody else")


class ChaosHarness:
    """`rollout.ports.Harness`."""

    def __init__(self, world: Chaos, thing: Thing, metadata: Mapping[str, Any]) -> None:
        self.thing = thing
        self._world = world
        self._metadata = metadata

    async def open(self, sample: TaskSample, member: int, observation: str) -> Sequence[Message]:
        owner = f"/g{sample.seed}/m{member}/"
        if owner not in self.thing.key or self._metadata["group"] != sample.seed:
            self._world.violate(f"{self.thing.key} was opened by {owner}")
        await self._act("open")
        return [{"role": "user", "content": observation}]

    async def calls(self, turn: AssistantTurn) -> Sequence[ToolCall]:
        await self._act("calls")
        return turn.calls

    async def answer(self, call: ToolCall, text: str) -> str:
        await self._act("answer")
        return text

    async def close(self) -> None:
        raise AssertionError("the lender gives back, nobody else")

    async def _act(self, what: str) -> None:
        await self._world.act(self.thing, what, EnvironmentFault, InfrastructureFailure)


@dataclass(frozen=True)
class ChaosEnvironments:
    """`rollout.ports.EnvironmentFactory`."""

    world: Chaos

    def lender(self) -> Lender[Environment]:
        return self.world.lender()

    async def close(self) -> None:
        pass


@dataclass(frozen=True)
class ChaosHarnesses:
    """`rollout.ports.HarnessFactory`."""

    world: Chaos

    def lender(self, metadata: Mapping[str, Any]) -> Lender[Harness]:
        return self.world.lends_harness(metadata)


async def _refuse_cancellation(work: Awaitable[Any]) -> None:
    """Work to the end, as a thread does, whoever is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait({task})


def _now() -> float:
    return asyncio.get_running_loop().time()
