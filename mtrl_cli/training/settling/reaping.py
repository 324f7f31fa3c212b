"""What each kind of borrow takes to be returned after its run is gone.

==================  =========================================================================
kind                how it is returned
==================  =========================================================================
``server_process``  the embedded server ends with its parent; one that has not is ended here
``env_server``      the same, of an environment server that was started for the run
``env_session``     nothing: a session ends with its connection, which the run's process held
``server_model``    unloaded, on the server of the run's ``config.yaml``, with the key from the
                    environment; one of an embedded server is gone with its process
``server_session``  nothing goes over the wire: it ends when its heartbeats have ended
``sandboxes``       the run's sandboxes, by their ids and by their mark: `reaping_sandboxes`
``sandbox``         one of them
==================  =========================================================================

A kind that mtrl learns to borrow joins as one entry of `Reaping.table`.
"""

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtrl_cli.errors import MtrlError
from mtrl_cli.runs.ledger import LedgerEntry
from mtrl_cli.runs.processes import Standing, end_process, restarted_since, standing, writing_to
from mtrl_cli.runs.reap import Fate, Reaped, Reaper, read_entries, reap
from mtrl_cli.servers.errors import Refused
from mtrl_cli.training.settling.sandboxes import (
    ACCOUNT,
    PATIENCE,
    SANDBOX,
    DeadSandboxes,
    SandboxReaping,
)

if TYPE_CHECKING:
    from mtrl_cli.config.schema import Experiment
    from mtrl_cli.servers.interface import TrainingService

_PROGRAMS = {
    "server_process": ("mtrl_cli.local", "server.log"),
    "env_server": ("mtrl_cli.envs.openenv_server", "env-server.log"),
}
"""What a started server runs, and the log in the run's folder that it writes to."""

_NO_LONGER_THERE = (404, 410)

RECALL_SECONDS = 10.0
"""How long the outcome of one accepted call is asked for."""


def _tell_nobody(text: str) -> None:
    pass


def settle(run: Path, tell: Callable[[str], None] = _tell_nobody) -> Reaped:
    """Settle a run whose process is gone, from its ledger.

    ``tell`` hears in one line what takes long.

    A damaged line of the ledger keeps nothing else from being returned, and is named as left.
    """
    return asyncio.run(_settle(run, tell))


async def _settle(run: Path, tell: Callable[[str], None]) -> Reaped:
    unread: list[int] = []
    entries = read_entries(run, unread)
    reaping = Reaping(run, entries, tell)
    patience = dict.fromkeys((ACCOUNT, SANDBOX), PATIENCE)
    try:
        reaped = await reap(run, entries, reaping.table, reaping.recall, patience)
        lost = (f"line {number} of {run / 'ledger.jsonl'} is damaged: what it names may still live"
                for number in unread)  # fmt: skip
        return replace(reaped, left=(*reaped.left, *lost))
    finally:
        await reaping.close()


class Reaping:
    """The reapers of one run. They share one connection to its server, made when it is needed."""

    def __init__(
        self, run: Path, entries: Sequence[LedgerEntry], tell: Callable[[str], None] = _tell_nobody
    ) -> None:
        self._run = run
        self._sandboxes = SandboxReaping(run, entries, self._dead_sandboxes, tell)
        self._entries = {entry.key: entry for entry in entries}
        self._gone = {entry.key for entry in entries if entry.state == "released"}
        self._service: TrainingService | None = None
        self._redact: Callable[[str], str] = str

    @property
    def table(self) -> Mapping[str, Reaper]:
        """In the order in which they are reaped."""
        return {
            "server_process": self._process,
            "env_server": self._process,
            "env_session": self._env_session,
            "server_model": self._server_model,
            "server_session": self._server_session,
            ACCOUNT: self._sandboxes.reap,
            SANDBOX: self._sandboxes.reap,
        }

    async def close(self) -> None:
        if self._service is not None:
            await self._service.close()

    async def recall(self, call: LedgerEntry) -> str:
        """What became of a training call, if its server lives and still knows."""
        attempt = call.key.partition("/")[0]
        sessions = [
            entry
            for entry in self._entries.values()
            if entry.key.startswith(f"{attempt}/") and entry.facts.get("kind") == "server_session"
        ]
        if not sessions or self._embedded(sessions[-1]) is not None:
            return "unknown"
        try:
            service = await self._connected(str(sessions[-1].facts.get("place")))
        except MtrlError:
            return "unknown"
        kind, request = str(call.facts.get("kind")), str(call.facts["request"])
        return await service.recall(kind, request, RECALL_SECONDS)

    # The servers that were started for the run.

    async def _process(self, borrow: LedgerEntry) -> Fate:
        named = "pid" in borrow.facts
        end = self._end_named if named else self._end_unnamed
        fate = await asyncio.to_thread(end, borrow.facts)
        if fate.released:
            self._gone.add(borrow.key)
        return fate

    def _end_named(self, facts: Mapping[str, Any]) -> Fate:
        ours = standing(facts) is Standing.ALIVE
        after = end_process(facts)
        if after is Standing.GONE or restarted_since(facts):
            return Fate(True, "ended" if ours else "had ended with the run")
        if after is Standing.ALIVE:
            return Fate(False, "it cannot be ended", f"kill -9 {facts['pid']}")
        return Fate(
            False,
            "it ends by itself with the run, which cannot be checked from here",
            f"run mtrl cancel {self._run.name} on {facts.get('host')}",
        )

    def _end_unnamed(self, facts: Mapping[str, Any]) -> Fate:
        """A server that was asked for, and whose pid the run did not come to record."""
        program, log = _PROGRAMS[str(facts["kind"])]
        here = facts.get("place") == socket.gethostname()
        running = writing_to(self._run / log, program) if here else None
        if running is None:
            remedy = f"look for {program} on {facts.get('place')}"
            return Fate(False, "whether it was started cannot be checked from here", remedy)
        if any(end_process(found) is not Standing.GONE for found in running):
            return Fate(False, "it cannot be ended")
        return Fate(True, "ended" if running else "is not running")

    async def _env_session(self, borrow: LedgerEntry) -> Fate:
        return Fate(True, "ended with its connection")

    def _embedded(self, borrow: LedgerEntry) -> LedgerEntry | None:
        """The embedded server that a borrow lives in, if it does in one."""
        address = str(borrow.facts.get("place", "")).rpartition(" ")[2]
        for entry in self._entries.values():
            if entry.facts.get("kind") == "server_process" and entry.facts.get("url") == address:
                return entry
        return None

    # What lives in a server.

    async def _server_model(self, borrow: LedgerEntry) -> Fate:
        if (server := self._embedded(borrow)) is not None:
            if server.key in self._gone:
                return Fate(True, "gone with the embedded server")
            return Fate(False, "it lives as long as the embedded server")
        if "id" not in borrow.facts:
            return self._unnamed_model(borrow)
        try:
            service = await self._connected(str(borrow.facts.get("place")))
            await service.execute(service.unload_model(str(borrow.facts["id"])), lambda _: None)
        except MtrlError as error:
            if isinstance(error, Refused) and error.status in _NO_LONGER_THERE:
                return Fate(True, "the server no longer had it")
            return Fate(False, self._redact(" ".join(str(error).split())))
        return Fate(True, "unloaded")

    def _unnamed_model(self, borrow: LedgerEntry) -> Fate:
        """A model that was asked for, and whose id the run did not come to record."""
        call = self._entries.get(f"{borrow.key.partition('/')[0]}/create_model")
        if call is None or call.state == "refused":
            return Fate(True, "was never created")
        return Fate(
            False,
            "it may have been created, and its id is unknown",
            "the server frees it when its session expires",
        )

    async def _server_session(self, borrow: LedgerEntry) -> Fate:
        if self._embedded(borrow) is not None:
            return Fate(True, "gone with the embedded server")
        return Fate(True, "expires at the server, as its heartbeats have ended")

    async def _connected(self, place: str) -> "TrainingService":
        """The run's server, as its configuration names it now.

        Raises:
            MtrlError: the configuration does not compose, a secret is not set, or the server
                cannot be reached or is not the one that the run used.
        """
        if self._service is None:
            from mtrl_cli.assembly import running_service

            service = running_service(self._experiment().server)
            now = self._redact(service.describe())
            if now != place:
                raise MtrlError(f"the run's config.yaml now leads to another server: {now}")
            await service.connect()
            self._service = service
        return self._service

    # What lives at E2B.

    def _dead_sandboxes(self) -> DeadSandboxes:
        """Raises: MtrlError."""
        from mtrl_cli.assembly import dead_sandboxes

        return dead_sandboxes(self._experiment().env)

    def _experiment(self) -> "Experiment":
        """Raises: MtrlError: the configuration does not compose, or a secret is not set."""
        from mtrl_cli.config.compose import compose
        from mtrl_cli.config.resolve import resolve

        composed = compose(str(self._run / "config.yaml"))
        self._redact = composed.redact
        return resolve(composed)
