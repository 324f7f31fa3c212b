"""One run on one scripted server, for the cells that no matrix holds."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtrl_cli.testing import faults
from mtrl_cli.testing.counted_world import CountedWorld
from mtrl_cli.testing.policy_server import ScriptedPolicyServer
from tests.settlement import audit
from tests.settlement.cells import SCRIPTED, TINY, player
from tests.settlement.process import Running

ASYNC = "env.entrypoint=mtrl_cli.testing.counted_env:CountedAsyncEnvironment"


@dataclass
class Scene:
    """A server, a world, and the folder that runs are started in."""

    cwd: Path
    server: ScriptedPolicyServer
    world: CountedWorld
    gate: faults.Gate

    @property
    def environ(self) -> dict[str, str]:
        return {**self.world.environ(), "TINKER_API_KEY": "none-needed"}

    def hold(self, endpoint: str, *, skip: int = 0) -> None:
        """Hold the replies of an endpoint at the gate."""
        self.server.faults.add(endpoint, faults.hold(self.gate), times=-1, skip=skip)

    @contextmanager
    def train(self, *overrides: str, command: str = "train", **options: Any) -> Iterator[Running]:
        where = f'server.base_url="{self.server.url}"'
        arguments = (command, *TINY, *SCRIPTED, where, *overrides)
        running = Running(*arguments, cwd=self.cwd, environ=self.environ, **options)
        try:
            yield running
        finally:
            running.end()
            self.gate.open()

    @property
    def folder(self) -> Path:
        found = audit.run_folder(self.cwd)
        assert found is not None
        return found

    def calls(self) -> dict[str, str]:
        """Kind → outcome of the run's training calls, the last one of each kind."""
        entries = audit.entries(self.folder)
        return {e.facts["kind"]: e.state for e in entries if e.entry == "call"}


@contextmanager
def scene(cwd: Path) -> Iterator[Scene]:
    with ScriptedPolicyServer(sampler=player, poll_seconds=1.0) as server:
        yield Scene(cwd, server, CountedWorld(cwd / "world"), faults.Gate())
