"""The factory of sandboxes: from the sweep at a run's start to the one at its end.

A sandbox is made when its turn comes, and is on record with its id before it is used. A creation
of unknown outcome becomes a lost one (see `lost`) and is tried again under a new key; what is
surely refused is tried again when that can help, and else ends the run. Nobody's sandboxes but
those of runs that this machine knows to be dead are touched at the start.
"""

import asyncio
import itertools
import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mtrl_cli.envs.adapter import TaskAdapter
from mtrl_cli.envs.e2b.lost import LostCreations
from mtrl_cli.envs.e2b.outage import Outage
from mtrl_cli.envs.e2b.pace import Pace
from mtrl_cli.envs.e2b.program import load_program
from mtrl_cli.envs.e2b.provider import Judgement, Provider, judged
from mtrl_cli.envs.e2b.session import SandboxSession
from mtrl_cli.envs.e2b.sweep import Sweep
from mtrl_cli.envs.interface import Deadlines, Rules, TaskEnvironment, Watch, check_adapter
from mtrl_cli.errors import MtrlError
from mtrl_cli.rollout.lending import Lender
from mtrl_cli.rollout.ports import Environment, InfrastructureFailure, RolloutError
from mtrl_cli.rollout.resources import RolloutResources

_TRIES = {"unknown": 3, "unreachable": 3, "busy": 8}
"""How often one creation may fail so; a limit of the account is waited for without an end."""

_MARGIN = 60.0
"""Seconds that a sandbox may outlive its trajectory's deadline, for the way to it and back."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the account allows, and how sandboxes are asked for."""

    at_once: int
    per_second: float
    longest: float
    """Seconds that a sandbox may live."""
    settles: float
    """Seconds after which a creation that was not answered can have no further effect."""
    outage: float = 60.0
    """Seconds in which every creation has failed, after which the service is taken for gone."""


class CreationRefused(RolloutError, MtrlError):  # noqa: N818
    """E2B will never create it: the run ends."""


class E2BFactory:
    """`mtrl_cli.rollout.ports.EnvironmentFactory` over E2B's service.

    Args:
        entrypoint: the game's class, loaded in the sandbox only.
        files: modules and files that it needs beside its own.
        life: seconds that a trajectory may take.

    Raises:
        UsageError: the SDK is not installed, a file is missing, the environment misleads the SDK.
    """

    def __init__(
        self,
        entrypoint: str,
        adapter: TaskAdapter,
        *,
        api_key: str,
        template: str,
        files: Sequence[str],
        params: Mapping[str, Any],
        limits: Limits,
        life: float,
        deadlines: Deadlines = Deadlines(),  # noqa: B008 - frozen
        rules: Rules = Rules(),  # noqa: B008 - frozen
        watch: Watch | None = None,
    ) -> None:
        check_adapter(adapter)
        self._program = load_program(entrypoint, files, params)
        self._provider = Provider(
            api_key, template=template, timeout=deadlines.open, at_once=limits.at_once
        )
        self._name = entrypoint.rpartition(":")[2]
        self._adapter, self._rules, self._watch = adapter, rules, watch or Watch()
        self._deadlines, self._limits = deadlines, limits
        self._lifetime = math.ceil(min(life + deadlines.close + _MARGIN, limits.longest))
        self._pace = Pace(limits.at_once, limits.per_second)
        self._outage = Outage(limits.outage)
        self._queued: dict[str, asyncio.Future[None]] = {}
        self._run = ""
        self._resources: RolloutResources | None = None
        self._lost: LostCreations | None = None
        self._sweep: Sweep | None = None

    async def check(self) -> None:
        """Raises: MtrlError: the service cannot be reached, or does not take the key."""
        await self._provider.check()

    def account(
        self, run: str, resources: RolloutResources, dead: Callable[[str], bool]
    ) -> Lender["E2BFactory"]:
        """The run's use of the account: it begins and ends with a sweep.

        ``dead`` says of another run's id whether that run is known here, and over.
        """

        async def make(key: str) -> E2BFactory:
            self._run, self._resources = run, resources
            self._sweep = Sweep(self._provider, run, self._deadlines.close)
            self._lost = LostCreations(
                self._provider, resources, run, self._limits.settles, self._sweep.kill
            )
            try:
                text = await self._sweep.dead(dead)
            except InfrastructureFailure as failure:
                raise MtrlError(f"{self._provider.place}: {failure}") from failure
            if text:
                self._watch.tell(text)
            return self

        async def give_back(factory: E2BFactory) -> None:
            assert self._lost is not None
            assert self._sweep is not None
            if self._lost.count:
                self._watch.tell(
                    f"{self._lost.count} sandbox(es) whose creation was not answered may still"
                    f" appear: looking for them, at most {self._lost.seconds_left:.0f} s"
                )
            await self._lost.settle()
            await self._sweep.finish(resources)

        return Lender(
            "sandboxes",
            make,
            give_back,
            external=True,
            place=self._provider.place,
            identify=lambda factory: run,
            remedy=lambda name: f"e2b sandbox list, and kill those with mtrl_run {name}",
            patience=self._limits.settles + 90.0,
        )

    def lender(self) -> Lender[Environment]:
        return Lender(
            "sandbox",
            self._make,
            lambda environment: environment.close(),
            external=True,
            place=self._provider.place,
            identify=_sandbox_id,
            remedy=lambda name: f"e2b sandbox kill {name}",
            unwanted=self._unwanted,
            interruptible=True,
            patience=self._deadlines.close + 2.0,
        )

    async def close(self) -> None:
        """Nothing: the account is returned as the borrow that it is."""

    # --- one sandbox ----------------------------------------------------------------------------

    async def _make(self, key: str) -> Environment:
        await self._queue(key, self._pace.slot(), undo=self._pace.free)
        try:
            sandbox = await self._create(key)
        except BaseException:
            self._pace.free()
            raise
        assert self._sweep is not None
        sweep = self._sweep

        async def end() -> None:
            try:
                await sweep.kill(str(sandbox.sandbox_id))
            finally:
                self._pace.free()

        session = SandboxSession(sandbox, self._program, self._name, self._deadlines, end)
        return TaskEnvironment(session, self._adapter, self._name, self._rules, self._watch)

    async def _create(self, key: str) -> Any:
        """Raises: InfrastructureFailure, CreationRefused."""
        failures = dict.fromkeys(_TRIES, 0)
        for tried in itertools.count(1):
            await self._queue(key, self._pace.turn())
            metadata = {
                "mtrl": "sandbox", "mtrl_run": self._run, "mtrl_borrow": key, "mtrl_try": str(tried)
            }  # fmt: skip
            sent = asyncio.get_running_loop().time()
            assert self._resources is not None
            # Only what was sent can have an effect: that is what `mtrl cancel` waits for.
            self._resources.note(key, sent=round(time.time(), 3))
            try:
                sandbox = await self._provider.create(self._lifetime, metadata, _new_key())
            except asyncio.CancelledError:
                self._is_lost(key, tried, sent)
                raise
            except Exception as error:
                judgement = judged(error)
                if judgement.outcome == "unknown":
                    self._is_lost(key, tried, sent)
                self._judge(judgement, failures, sent)
            else:
                self._pace.accepted()
                self._outage.over(asyncio.get_running_loop().time())
                return sandbox
        raise AssertionError

    def _judge(self, judgement: Judgement, failures: dict[str, int], sent: float) -> None:
        """Whether a failed creation is tried again: where not, it raises."""
        if judgement.outcome == "refused":
            raise CreationRefused(f"{self._provider.place} creates no sandbox: {judgement.text}")
        if judgement.limited:
            self._outage.over(asyncio.get_running_loop().time())
            self._watch.saw("creations_limited", f"E2B limits us, waiting: {judgement.text}")
        else:
            self._watch.saw(
                f"creations_{judgement.outcome}",
                f"{self._provider.place}: a creation failed, it is tried again (the run ends when"
                f" none succeeds for {self._outage.seconds:g} s): {judgement.text}",
            )
            if self._outage.failed(sent, asyncio.get_running_loop().time()):
                raise CreationRefused(
                    f"{self._provider.place} has created no sandbox for {self._outage.seconds:g} s:"
                    f" {self._outage.failures} creations in a row failed, the last one with:"
                    f" {judgement.text}"
                )
            failures[judgement.outcome] += 1
            if failures[judgement.outcome] >= _TRIES[judgement.outcome]:
                raise InfrastructureFailure(f"no sandbox: {judgement.text}")
        if judgement.outcome != "unknown":
            self._pace.back_off(judgement.retry_after)

    def _is_lost(self, key: str, tried: int, sent: float) -> None:
        assert self._lost is not None
        self._lost.add(key, tried, sent, self.lender())

    async def _queue(self, key: str, turn: Any, undo: Callable[[], None] = lambda: None) -> None:
        """Wait for something that may be given up as soon as nobody wants it any more; ``undo``
        what was waited for when it comes and we are gone."""
        waiting = self._queued[key] = asyncio.ensure_future(turn)
        try:
            await waiting
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled() and waiting.exception() is None:
                undo()  # it came in the moment of our cancellation
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise InfrastructureFailure("given up before it was created") from None
        finally:
            self._queued.pop(key, None)

    def _unwanted(self, key: str) -> None:
        if (waiting := self._queued.get(key)) is not None:
            waiting.cancel()


def _sandbox_id(environment: Any) -> str:
    return str(environment.session.id)


def _new_key() -> str:
    return f"mtrl-{time.time_ns():x}-{secrets.token_hex(8)}"
