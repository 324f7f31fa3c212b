"""A world whose live instances can be counted from outside the process that plays in it.

Every instance of an environment leaves a file in a folder from its first moment until it is
closed, and a line in a log for everything that is done with it. A test, or a person, looks at
the folder and knows what is still borrowed, however the process ended. What an instance does
when it is made, reset, stepped or closed is a script in the same folder, and gates let a test
hold it there until something else has happened::

    world = CountedWorld(folder)
    world.script(step=Act(gate="step"))          # every step waits at the gate
    process = start(…, env=world.environ())      # env.entrypoint: see `counted_env`
    world.wait(lambda: world.waiting("step") == 2)
    …                                            # the moment under test
    world.open("step")
    assert world.live() == []

`CountedTask` is the task that goes with it: one tool, ``play(value=…)``, ``turns`` calls long;
the reward of a member is its index plus a tenth of the values that it played.
"""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mtrl_cli.rollout.ports import Message, TaskSample, ToolCall, ToolSpec

FOLDER_VARIABLE = "MTRL_COUNTED_WORLD"
"""Names the folder to the environments."""


@dataclass(frozen=True, slots=True)
class Act:
    """What an instance does at one of ``init``, ``reset``, ``step`` and ``close``."""

    seconds: float = 0.0
    """How long it takes."""
    gate: str | None = None
    """It waits until the test opens this gate."""
    error: str | None = None
    """It ends in a RuntimeError of this text."""
    blocks: bool = False
    """An asynchronous environment waits without giving the event loop back."""
    instances: tuple[int, ...] | None = None
    """Numbers of the instances that do this, from 1 in the order of creation; None for all."""


class CountedWorld:
    """The folder, from both sides: the test's, and that of the instances in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("live", "waiting", "open"):
            (folder / name).mkdir(parents=True, exist_ok=True)

    def environ(self) -> dict[str, str]:
        return {FOLDER_VARIABLE: str(self.folder)}

    # The test's side.

    def script(self, **acts: Act) -> None:
        """Fix what instances do at ``init``, ``reset``, ``step`` and ``close``."""
        text = json.dumps({name: asdict(act) for name, act in acts.items()})
        (self.folder / "script.json").write_text(text)

    def live(self) -> list[str]:
        """``PID-NUMBER`` of every instance that was made and not closed."""
        return sorted(path.name for path in (self.folder / "live").iterdir())

    def live_in_living_processes(self) -> list[str]:
        """The same, without those that ended with their process."""
        return [name for name in self.live() if Path(f"/proc/{name.partition('-')[0]}").exists()]

    def events(self, kind: str | None = None) -> list[tuple[str, int]]:
        """What was done with which instance, in order: ``("step", 1)`` and so on."""
        log = self.folder / "log"
        lines = log.read_text().split("\n")[:-1] if log.exists() else []
        pairs = [(name, int(number)) for name, _, number in (line.partition(" ") for line in lines)]
        return [pair for pair in pairs if kind is None or pair[0] == kind]

    def waiting(self, gate: str) -> int:
        """How many instances wait at the gate."""
        return sum(path.name.startswith(f"{gate}-") for path in (self.folder / "waiting").iterdir())

    def open(self, gate: str) -> None:
        (self.folder / "open" / gate).touch()

    @staticmethod
    def wait(condition: Callable[[], bool], seconds: float = 30.0) -> None:
        """Raises: TimeoutError."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError("the world never got there")
            time.sleep(0.01)

    # The instances' side.

    @classmethod
    def of_environ(cls) -> "CountedWorld":
        return cls(Path(os.environ[FOLDER_VARIABLE]))

    def act(self, when: str, number: int) -> Act:
        path = self.folder / "script.json"
        acts = json.loads(path.read_text()) if path.exists() else {}
        act = Act(**acts.get(when, {}))
        if act.instances is not None and number not in act.instances:
            return Act()
        return act

    def enter(self, number: int) -> None:
        (self.folder / "live" / f"{os.getpid()}-{number}").touch()

    def leave(self, number: int) -> None:
        (self.folder / "live" / f"{os.getpid()}-{number}").unlink(missing_ok=True)

    def record(self, event: str, number: int) -> None:
        with (self.folder / "log").open("a") as log:
            log.write(f"{event} {number}\n")

    def arrive(self, gate: str, number: int) -> None:
        (self.folder / "waiting" / f"{gate}-{os.getpid()}-{number}").touch()

    def depart(self, gate: str, number: int) -> None:
        (self.folder / "waiting" / f"{gate}-{os.getpid()}-{number}").unlink(missing_ok=True)

    def is_open(self, gate: str) -> bool:
        return (self.folder / "open" / gate).exists()


class CountedTask:
    """`mtrl_cli.rollout.ports.Task`, and the adapter to the environments of `counted_env`."""

    references: Mapping[str, float] = {}

    tools: Sequence[ToolSpec] = (
        {
            "type": "function",
            "function": {
                "name": "play",
                "description": "Play a value.",
                "parameters": {
                    "type": "object",
                    "properties": {"value": {"type": "integer"}},
                    "required": ["value"],
                    "additionalProperties": False,
                },
            },
        },
    )

    def __init__(self, name: str, unfinished_reward: float = -1.0, turns: int = 2) -> None:
        self.name = name
        self.unfinished_reward = unfinished_reward
        self.turns = turns

    def sample(self, seed: int) -> TaskSample:
        return TaskSample(id=f"{self.name}/{seed}", seed=seed)

    def messages(self, sample: TaskSample, observation: str) -> Sequence[Message]:
        return ({"role": "user", "content": observation},)

    def reset_arguments(self, sample: TaskSample, member: int) -> dict[str, Any]:
        return {"seed": sample.seed, "member": member, "turns": self.turns}

    def action(self, call: ToolCall) -> dict[str, Any]:
        return {"value": call.arguments["value"]}

    def observation_text(self, observation: Mapping[str, Any]) -> str:
        return str(observation["text"])
