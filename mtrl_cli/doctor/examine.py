"""The examination: every check in its order, over parts that are borrowed and given back.

::

    python  configuration  secrets  packages  folders  task  tokenizer  template      (`here`)
    environment  episode  server  capabilities  sample  stop ids  logprobs  parity    (`lent`)
    returned  runs  sandboxes

What lives outside this process is recorded as any run records it, in a run folder of the kind
``doctor``: one that was killed is a lost run, which `mtrl cancel` settles. A folder of which
everything was returned is removed again, and ``latest`` never points at one.
"""

import asyncio
import shutil
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

from mtrl_cli.config.compose import Composed
from mtrl_cli.doctor import leftovers
from mtrl_cli.doctor.here import Here, look_around, secrets_of
from mtrl_cli.doctor.lent import Lent
from mtrl_cli.doctor.report import Report, Speaker
from mtrl_cli.errors import MtrlError
from mtrl_cli.rollout.resources import RolloutResources
from mtrl_cli.runs.control import RunControl
from mtrl_cli.runs.folder import RunFolder
from mtrl_cli.runs.stop import Stage, StopRequest


async def examine(
    composed: Composed, report: Report, stop: StopRequest, *, trains: bool = True
) -> None:
    """Check everything until ``stop`` is asked for; what is found is in the report.

    Args:
        trains: also create a model and compare the trainer with the sampler.

    Raises:
        asyncio.CancelledError: it was asked for; everything is returned.
    """
    work = asyncio.ensure_future(_carry_out(composed, report, stop, trains))
    stopped = asyncio.ensure_future(stop.reached(Stage.DRAIN))
    try:
        await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        if not work.done():
            work.cancel()
            await asyncio.wait({work})
    if work.cancelled():
        raise asyncio.CancelledError
    if (error := work.exception()) is not None:
        raise error


def unusable(report: Report, error: MtrlError) -> None:
    """A configuration that does not compose: nothing else can be checked."""
    hint, at = getattr(error, "hint", None), getattr(error, "at", None)
    told = [" ".join(line.split()) for line in str(error).splitlines()]
    says = "\n".join(told) + (f" (at {at})" if at else "")
    Speaker(report, "configuration").fail(says, hint)


async def _carry_out(composed: Composed, report: Report, stop: StopRequest, trains: bool) -> None:
    here = await look_around(composed, report)
    if here is None:
        return
    experiment, own = here.experiment, None
    runs = Path(experiment.run.dir)
    if report.bad("folders") is None:
        own = await _with_folder(here, composed, report, stop, trains)
    else:
        report.skip("environment", "folders failed: what is borrowed cannot be recorded")
        report.skip("server", "folders failed: what is borrowed cannot be recorded")
    await report.check("runs", lambda s: leftovers.dead_runs(s, runs, own))
    await report.check(
        "sandboxes",
        lambda s: leftovers.orphans(s, experiment, runs, own),
        seconds=experiment.env.open_timeout + 5,
        needs=(secrets_of("env"),),
    )


async def _with_folder(
    here: Here, composed: Composed, report: Report, stop: StopRequest, trains: bool
) -> str:
    """Try what is borrowed, in a run folder of its own; its id."""
    runs = Path(here.experiment.run.dir)
    existed = await asyncio.to_thread(runs.is_dir)
    folder = RunFolder.create(
        runs, here.experiment.name, "doctor", composed.yaml, composed.redact, latest=False
    )
    resources = RolloutResources(folder.ledger, prefix="a1/")
    folder.count_borrows(lambda: _borrows(resources))
    control = RunControl(folder.path, 1, lambda ask: stop.request(Stage.DRAIN, "mtrl cancel"))
    control.start()
    status, reason = "cancelled", ""
    try:
        async with AsyncExitStack() as held:
            await Lent(here, report, folder, resources, held, trains).try_all()
        status = "finished"
    except Exception as error:
        status, reason = "failed", str(error) or type(error).__name__
        raise
    finally:
        left = await resources.close()
        folder.end(status, stop.reason if status == "cancelled" else reason or None)
        control.close()
        returned = Speaker(report, "returned")
        for borrow in left:
            returned.fail(borrow.describe(), f"mtrl cancel {folder.id}, or as said")
        if not left:
            returned.ok("everything that was borrowed was given back")
            _remove(folder.path, runs, existed)
    return folder.id


def _borrows(resources: RolloutResources) -> dict[str, Any]:
    quarantined = resources.quarantined
    return {
        "held": len(resources.live) - len(quarantined),
        "quarantined": [borrow.describe() for borrow in quarantined],
    }


def _remove(path: Path, runs: Path, existed: bool) -> None:
    """What the doctor made; a folder of runs that others came to use meanwhile stays."""
    shutil.rmtree(path, ignore_errors=True)
    if not existed:
        with suppress(OSError):
            runs.rmdir()
