"""This machine: Python, packages, disk, folders. Nothing is contacted."""

import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from mtrl_cli import __version__
from mtrl_cli.assembly import embedded_for, notices
from mtrl_cli.config.schema import EnvKind, Experiment
from mtrl_cli.doctor.report import Speaker, Told
from mtrl_cli.runs.places import check_runs_dir

_TRIED = ((3, 11), (3, 13))
"""The oldest and the newest Python that mtrl declares."""
_PACKAGE = "mtrl-cli"
_EITHER = {"openenv-core": "openenv"}
"""A distribution, and the successor that stands in for it."""
_LITTLE, _LEAST = 2**30, 100 * 2**20
"""Bytes free: below the first it is told, below the second no run is begun."""


async def python(speaker: Speaker) -> None:
    said = f"mtrl {__version__}, Python {platform.python_version()} on {platform.system()}"
    if _TRIED[0] <= sys.version_info[:2] <= _TRIED[1]:
        speaker.ok(said)
    else:
        speaker.warn(f"{said}, which mtrl was not tried on", "use Python 3.11, 3.12 or 3.13")


async def packages(speaker: Speaker, experiment: Experiment | None) -> None:
    """What mtrl requires, and what that requires in turn."""
    try:
        problems = list(_unmet(_extras(experiment)))
    except metadata.PackageNotFoundError:
        speaker.warn(
            f"{_PACKAGE} is not installed as a package: versions were not compared",
            "python -m pip install mtrl-cli, or python -m pip install -e . in a checkout",
        )
        problems = []
    for problem, remedy in problems:
        speaker.fail(problem, remedy)
    for notice in notices():
        says, _, remedy = notice.partition(". Keep one: ")
        speaker.warn(says, remedy or None)
    if not problems:
        speaker.ok("every package that is required is there, in a version that fits")


def _extras(experiment: Experiment | None) -> frozenset[str]:
    e2b = experiment is not None and experiment.env.kind is EnvKind.e2b
    return frozenset({"e2b"} if e2b else ())


def _unmet(extras: frozenset[str]) -> Iterator[tuple[str, str]]:
    """The requirements that do not hold, over all that mtrl builds on, and what to do.

    Raises:
        PackageNotFoundError: mtrl itself is not installed.
    """
    from packaging.requirements import Requirement

    waiting, seen = [(_PACKAGE, extras)], {_PACKAGE}
    while waiting:
        package, chosen = waiting.pop()
        for text in metadata.requires(package) or ():
            requirement = Requirement(text)
            marker = requirement.marker
            if marker is not None and not any(marker.evaluate({"extra": e}) for e in {"", *chosen}):
                continue
            name = re.sub(r"[-_.]+", "-", requirement.name).lower()
            version = _version(name)
            if version is None and (other := _EITHER.get(name)) and _version(other):
                continue
            wanted = f"{name}{requirement.specifier}"
            if version is None:
                missing = f"{package} requires {wanted}, which is missing"
                yield missing, f"python -m pip install '{wanted}'"
            elif not requirement.specifier.contains(version, prereleases=True):
                yield (
                    f"{package} requires {wanted}, and {version} is installed",
                    f"python -m pip install '{wanted}'",
                )
            elif name not in seen:
                seen.add(name)
                waiting.append((name, frozenset(requirement.extras)))


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


async def folders(speaker: Speaker, experiment: Experiment) -> None:
    """Where the run, and the embedded server's weights, go."""
    check_runs_dir(experiment.run.dir)
    _room(speaker, "run.dir", Path(experiment.run.dir))
    if (embedded := embedded_for(experiment.server)) is not None:
        _room(speaker, "server.store", embedded.store)


def _room(speaker: Speaker, key: str, folder: Path) -> None:
    """Raises: Told: it cannot be written to, or there is no room."""
    path = folder.absolute()
    base = next(p for p in (path, *path.parents) if os.path.lexists(p))
    if not base.is_dir() or not os.access(base, os.W_OK | os.X_OK):
        raise Told(f"{key}: {str(folder)!r} is not writable", f"set {key} to a folder of yours")
    free = shutil.disk_usage(base).free
    said = f"{key}: {folder} is writable, {free / 2**30:.1f} GiB free"
    if free < _LEAST:
        raise Told(said, "make room: a run stops when it cannot record")
    if free < _LITTLE:
        speaker.warn(said, "make room, or set run.trajectories=false")
    else:
        speaker.ok(said)
