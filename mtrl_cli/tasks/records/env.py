"""The records office as an OpenEnv environment, for this process or behind a server."""

from typing import Any, Literal

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

from mtrl_cli.tasks.records.game import Desk


class RecordsAction(Action):  # type: ignore[misc] # openenv is not typed
    """One tool call."""

    tool: Literal["find", "correct", "note", "submit"]
    arguments: dict[str, Any]


class RecordsObservation(Observation):  # type: ignore[misc]
    """The answer, as text."""

    text: str


class RecordsEnvironment(Environment):  # type: ignore[misc]
    """One office; an episode is one search."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    action_class = RecordsAction
    observation_class = RecordsObservation

    def __init__(self) -> None:
        super().__init__()
        self._desk = Desk()
        self._state = State()

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, **_: Any
    ) -> RecordsObservation:
        self._state = State(episode_id=episode_id, step_count=0)
        return RecordsObservation(text=self._desk.open(seed or 0))

    def step(
        self, action: RecordsAction, timeout_s: float | None = None, **_: Any
    ) -> RecordsObservation:
        text, reward, done = self._desk.act(action.tool, action.arguments)
        self._state.step_count += 1
        return RecordsObservation(text=text, reward=reward, done=done)

    @property
    def state(self) -> State:
        return self._state
