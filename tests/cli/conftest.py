"""One trained policy for all tests that only read it."""

import pytest

from tests.cli.world import TINY, World


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A folder with a finished training run, ``first``; it stays the newest one that trains."""
    world = World(tmp_path_factory.mktemp("trained"))
    done = world.mtrl("train", *TINY)
    assert done.returncode == 0, done.stderr
    world.first, world.told = world.run().name, done.stdout
    return world
