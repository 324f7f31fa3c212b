"""What a person is told of a service that makes its callers wait: it is looked at once a second."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from mtrl_cli.rollout.events import Observer
from mtrl_cli.training.events import ServiceStrained

if TYPE_CHECKING:
    from mtrl_cli.servers.interface import TrainingService

_EVERY = 1.0


@asynccontextmanager
async def strain_told(service: "TrainingService", observer: Observer) -> AsyncIterator[None]:
    """Tell ``observer`` each change of the service's strain, until the block is left; then nobody
    waits any more."""
    told = ServiceStrained(0, None)

    def tell(seen: ServiceStrained) -> None:
        nonlocal told
        if seen != told:
            told = seen
            observer(seen)

    async def watch() -> None:
        while True:
            await asyncio.sleep(_EVERY)
            strain = service.strain
            tell(ServiceStrained(strain.reissued, strain.waits))

    watching = asyncio.ensure_future(watch())
    try:
        yield
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        tell(ServiceStrained(service.strain.reissued, None))
