"""An OpenEnv environment whose tools are MCP's: a safe that opens to a sum."""

from typing import Any

from fastmcp import FastMCP
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.types import Action, Observation, State


class Safe(MCPEnvironment):
    """Reward and end come with the steps, as an environment for training must give them."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        server = FastMCP("safe")

        @server.tool
        def add(a: int, b: int) -> int:
            """Add two numbers."""
            return a + b

        @server.tool
        def turn(number: int) -> str:
            """Turn the dial to a number."""
            self.opened = number == self.code
            return "It opens." if self.opened else "Nothing."

        super().__init__(server)
        self.code = 0
        self.opened = False

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, **_: Any
    ) -> Observation:
        self.code = 2 * (seed or 0)
        self.opened = False
        return Observation(metadata={"text": "not on every wire"})

    def step(self, action: Action, timeout_s: float | None = None, **more: Any) -> Observation:
        return self._scored(super().step(action, timeout_s=timeout_s, **more))

    async def step_async(
        self, action: Action, timeout_s: float | None = None, **more: Any
    ) -> Observation:
        return self._scored(await super().step_async(action, timeout_s=timeout_s, **more))

    def _scored(self, observation: Observation) -> Observation:
        if self.opened:
            observation.done, observation.reward = True, 1.0
        return observation

    def _step_impl(self, action: Action, **_: Any) -> Observation:  # type: ignore[override]
        raise ValueError("tools only")

    @property
    def state(self) -> State:
        return State()
