"""``mtrl store --give-up RUN``: which run that is, its mark, and why something of it stays.

From the mark in its ``run.json`` on nobody resumes the run or plays its policies by their steps, so
it is written before the first file goes.
"""

import errno
import json
import shlex
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mtrl_cli.display.lines import counted
from mtrl_cli.errors import MtrlError, UsageError
from mtrl_cli.runs.control import locked
from mtrl_cli.runs.files import write_document
from mtrl_cli.runs.folder import SCRIPT
from mtrl_cli.runs.needed import Need, snapshots_of
from mtrl_cli.runs.registry import NoSuchRun, RunRecord, find_trained
from mtrl_cli.runs.takeover import refuse_running

_FULL = (errno.ENOSPC, errno.EDQUOT)
_SHOWN = 3


def to_give_up(folders: Sequence[Path], asked: str) -> RunRecord:
    """The run that is to be given up.

    Raises:
        NoSuchRun: there is none, or several.
        UsageError: it has no snapshots.
        StillRunning: it lives.
        MtrlError: it is not known what it needs.
    """
    missing: NoSuchRun | None = None
    for folder in folders:
        try:
            path = find_trained(folder, asked).path
            run = refuse_running(path.resolve() if "/" in asked else path)
        except NoSuchRun as error:
            missing = missing or error
            continue
        kind = run.state.get("kind", "train")
        if kind != "train" or run.state.get("recorded") == SCRIPT:
            raise UsageError(f"--give-up {asked}: {run.id} is no run of mtrl train")
        snapshots_of(run)
        return run
    raise missing or NoSuchRun(f"no run {asked!r}")


def mark(run: Path) -> None:
    """Write that the run is given up.

    Raises:
        StillRunning: it lives.
        MtrlError: the disk is full.
    """
    try:
        with locked(run):
            state = dict(refuse_running(run).state)
            state.setdefault("given_up", round(time.time(), 3))
            write_document(run / "run.json", json.dumps(state, indent=2) + "\n")
    except OSError as error:
        if error.errno not in _FULL:
            raise
        full = MtrlError(
            f"{error.filename}: {error.strerror}: nothing was removed, as {run.name} cannot be "
            "marked as given up"
        )
        full.hint = "make a little room first; mtrl store --prune KIND needs none"
        raise full from error


def waiting(number: int, lost: RunRecord, playing: Sequence[RunRecord]) -> str:
    """That so many snapshots of ``lost`` must stay as long as ``playing`` go on."""
    names = [f"{run.state.get('kind')} {run.id}" for run in playing]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return (
        f"{counted(number, 'snapshot')} of {lost.id} must stay, as what goes on here may play them "
        f"and has not told what it plays: {', '.join(names[:_SHOWN])}{more}; type the same again "
        "when that has ended"
    )


def why_none(root: Path, mine: Sequence[Need], lost: RunRecord) -> str:
    """Why nothing would go if ``lost`` were given up; ``mine`` is what its snapshots in the store
    are to the runs."""
    if mine:
        strange = sum(need is Need.unknown for need in mine)
        whys = {
            "named, evaluated or played by another run": len(mine) - strange,
            "of attempts that its folder does not tell of (--prune unknown)": strange,
        }
        told = " and ".join(f"{number:,} {why}" for why, number in whys.items() if number)
        return f"{root} holds {counted(len(mine), 'snapshot')} of {lost.id}, and none goes: {told}"
    nothing = f"{root} holds nothing of {lost.id}"
    with suppress(MtrlError, OSError):
        server = _server(lost.path)
        kind, address, store = (server[key] for key in ("kind", "base_url", "store"))
        if store is None:
            place = kind if address is None else f"{kind} at {address}"
            mine_too = "; if that is mtrl serve, --store DIR names its store"
            return (
                f"{nothing}: its snapshots are on its server ({place}), and are removed there"
                f"{mine_too if kind == 'local' else ''}"
            )
        if Path(store) != root:
            return f"{nothing}: its config.yaml names another store: --store {shlex.quote(store)}"
    return f"{nothing}; --store DIR names another store"


def _server(run: Path) -> dict[str, Any]:
    """Where the run's policies live, as its config.yaml has it.

    Raises:
        MtrlError: it does not compose.
    """
    from mtrl_cli.config.compose import compose
    from mtrl_cli.config.resolve import resolve
    from mtrl_cli.training.policies.choose import server_facts

    return server_facts(resolve(compose(str(run / "config.yaml")), secrets=False).server)
