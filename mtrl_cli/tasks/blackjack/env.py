"""Blackjack as an OpenEnv environment.

`reset` deals a game of a seed and a group member (see `game`); `step` hits or stands. The end
of a game is final: a further step is an error until the next reset. Usable in process and
behind OpenEnv's own ``create_app``, where every session gets its own instance.
"""

from typing import Any, Literal

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

from mtrl_cli.tasks.blackjack.game import Game
from mtrl_cli.tasks.blackjack.text import hand, result


class BlackjackAction(Action):  # type: ignore[misc] # openenv is not typed
    """Take a card or stop."""

    action: Literal["hit", "stand"]


class BlackjackObservation(Observation):  # type: ignore[misc]
    """What the player sees, as one line of text."""

    text: str


class BlackjackEnvironment(Environment):  # type: ignore[misc]
    """One table; an episode is one game."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    action_class = BlackjackAction

    def __init__(self) -> None:
        super().__init__()
        self._game: Game | None = None
        self._state = State()

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        member: int = 0,
        **_: Any,
    ) -> BlackjackObservation:
        """Deal a game. The same seed and member give the same game, in every process."""
        self._game = Game.deal(0 if seed is None else seed, member)
        self._state = State(episode_id=episode_id, step_count=0)
        return BlackjackObservation(text=hand(self._game))

    def step(
        self, action: BlackjackAction, timeout_s: float | None = None, **_: Any
    ) -> BlackjackObservation:
        if self._game is None:
            raise RuntimeError("no game is dealt: reset the environment before the first action")
        if action.action == "hit":
            self._game.hit()
        else:
            self._game.stand()
        self._state.step_count += 1
        if self._game.over:
            return BlackjackObservation(
                text=result(self._game), done=True, reward=self._game.reward
            )
        return BlackjackObservation(text=hand(self._game), reward=0.0)

    @property
    def state(self) -> State:
        return self._state
