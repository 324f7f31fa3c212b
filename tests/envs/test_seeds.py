"""An environment that ignores its seed is noticed before anything is played."""

import random
from typing import Any

import pytest

from mtrl_cli.envs.e2b.session import UnusableProgram
from mtrl_cli.envs.interface import Reply, Rules, TaskEnvironment, Watch
from mtrl_cli.envs.seeds import seed_notice
from mtrl_cli.errors import UsageError
from mtrl_cli.rollout.lending import Lender
from mtrl_cli.rollout.ports import Environment, InfrastructureFailure
from mtrl_cli.rollout.resources import RolloutResources
from mtrl_cli.tasks.blackjack.task import Blackjack


class Dealer:
    """Deals by the seed it is given, or by its own."""

    def __init__(self, honest: bool) -> None:
        self.honest = honest

    async def reset(self, arguments: Any) -> Reply:
        rng = random.Random(arguments["seed"]) if self.honest else random.Random()
        return Reply({"text": str(rng.getrandbits(64))})

    async def step(self, action: Any) -> Reply:
        raise AssertionError("nothing is played")

    async def close(self) -> None: ...


class Dealers:
    def __init__(self, honest: bool, broken: bool = False) -> None:
        self.honest, self.broken, self.made = honest, broken, 0

    def lender(self) -> Lender[Environment]:
        return Lender("env", self.open, lambda environment: environment.close())

    async def open(self, key: str) -> Environment:
        if self.broken:
            raise InfrastructureFailure("no room")
        self.made += 1
        return TaskEnvironment(Dealer(self.honest), Blackjack(), "Dealer", Rules(), Watch())

    async def close(self) -> None: ...


@pytest.mark.parametrize("honest", [True, False])
async def test_two_episodes_of_one_seed_are_compared(honest: bool) -> None:
    dealers, resources = Dealers(honest), RolloutResources()
    notice = await seed_notice(dealers, Blackjack(), resources)
    assert bool(notice) is not honest
    assert honest or notice.startswith("the environment ignores its seed: ")
    assert (dealers.made, resources.live) == (2, ())


async def test_a_check_that_fails_stops_nothing() -> None:
    notice = await seed_notice(Dealers(True, broken=True), Blackjack(), RolloutResources())
    assert notice == "whether the environment honours its seed could not be checked: no room"


async def test_what_no_episode_can_be_played_with_ends_the_run() -> None:
    class Unloadable(Dealers):
        async def open(self, key: str) -> Environment:
            raise UnusableProgram("env.entrypoint: Game cannot be loaded in a sandbox")

    with pytest.raises(UsageError, match="cannot be loaded"):
        await seed_notice(Unloadable(True), Blackjack(), RolloutResources())
