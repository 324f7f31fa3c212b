"""The phases of a run, each with the way to hold a run in it.

A phase holds the run at one place: a gate at the server (a request whose reply waits) or a gate
in the environments. ``commits`` is what a drain that begins there must still commit, out of a run
of two steps of one group of two.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from mtrl_cli.testing import faults
from mtrl_cli.testing.counted_world import Act, CountedWorld
from mtrl_cli.testing.policy_server import ScriptedPolicyServer


@dataclass(frozen=True)
class Held:
    """What holds a run: a scripted server's gate and the world's, opened together."""

    server: ScriptedPolicyServer | None
    world: CountedWorld
    gate: faults.Gate = field(default_factory=faults.Gate)

    def open(self) -> None:
        self.gate.open()
        self.world.open("gate")


@dataclass(frozen=True)
class Phase:
    name: str
    commits: int
    endpoint: str | None = None
    """The server's endpoint whose reply is held."""
    skip: int = 0
    """How many of its requests pass first."""
    acts: dict[str, Act] = field(default_factory=dict)
    """What the environments do; their gate is called ``gate``."""
    waiting: int = 1
    """Requests or environments at the gate, from which on the run is in the phase."""
    also: Callable[[Held], bool] = lambda held: True
    """What else must have happened by then."""
    overrides: tuple[str, ...] = ()

    def arrange(self, held: Held) -> None:
        held.world.script(**self.acts)
        if self.endpoint is not None:
            assert held.server is not None
            held.server.faults.add(self.endpoint, faults.hold(held.gate), times=-1, skip=self.skip)

    def reached(self, held: Held) -> bool:
        there = held.gate.arrived if self.endpoint else held.world.waiting("gate")
        return there >= self.waiting and self.also(held)


PHASES = (
    Phase("first contact", 0, "get_server_capabilities"),
    Phase("start-up", 0, "create_session"),
    Phase("model creation", 0, "create_model"),
    Phase("env creation", 1, acts={"init": Act(gate="gate")}, waiting=2),
    Phase("env reset", 1, acts={"reset": Act(gate="gate")}, waiting=2),
    Phase("sampling", 1, "asample", waiting=2),
    Phase("env step", 1, acts={"step": Act(gate="gate")}, waiting=2),
    Phase(
        "waiting for the rest of a group",
        1,
        acts={"step": Act(gate="gate", instances=(2,))},
        also=lambda held: ("close", 1) in held.world.events(),
    ),
    Phase("training call in flight", 1, "forward_backward"),
    Phase("optimizer step in flight", 1, "optim_step"),
    Phase("publish", 1, "save_weights_for_sampler", skip=1),
    Phase("evaluation", 0, "asample", waiting=2, overrides=("eval.games=2",)),
    Phase(
        "evaluation during training",
        2,  # the next group is admitted before the evaluation begins
        "asample",
        skip=4,
        waiting=2,
        overrides=("eval.every=1", "eval.games_during=2"),
    ),
    Phase("shutdown", 2, "unload_model"),
)

BY_NAME = {phase.name: phase for phase in PHASES}
EMBEDDED = ("env creation", "env step", "waiting for the rest of a group")
"""Phases that the environments alone can hold, whatever the server is."""
