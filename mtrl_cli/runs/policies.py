"""Named policies: immutable manifests under ``RUNS_DIR/policies``.

    policies/NAME/manifest.json     which snapshot the name stands for, and where it comes from
    policies/NAME/config.yaml       the run's configuration

A policy's folder is filled beside its place and renamed into it, so that it is whole or absent
and a name is won once; nothing ever writes into it again. A name is one path segment, and what
the folder holds beside real folders (symbolic links, files) is not looked at.
"""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtrl_cli.errors import MtrlError, UsageError
from mtrl_cli.runs.files import file_at, write_document

FOLDER = "policies"
FORMAT = 1
"""Of the manifest; a reader refuses a newer one."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,127}")
_RESERVED = frozenset({"base", "false", "inf", "last", "nan", "none", "null", "true"})


@dataclass(frozen=True, slots=True)
class NamedPolicy:
    """A policy that has a name. Its manifest is described in docs/publish.md."""

    name: str
    path: Path
    manifest: Mapping[str, Any]

    @property
    def uri(self) -> str:
        return str(self.manifest["uri"])

    @property
    def policy_step(self) -> int:
        return int(self.manifest["policy_step"])

    @property
    def initial(self) -> str | None:
        """URI of the policy that its run began from."""
        initial = self.manifest.get("initial")
        return None if initial is None else str(initial)

    @property
    def task(self) -> str | None:
        """Entrypoint of the task that it was trained on; None in a manifest that lacks it."""
        experiment = self.manifest.get("experiment")
        return experiment.get("task") if isinstance(experiment, Mapping) else None

    @property
    def server(self) -> Mapping[str, Any]:
        """The server that holds it, in the words of the configuration."""
        server = self.manifest["server"]
        assert isinstance(server, Mapping)  # `read_policy` has seen to it
        return server


def check_name(name: str) -> str:
    """``name``, if a policy may be called so.

    Raises:
        UsageError: it may not; says what may.
    """
    if not _NAME.fullmatch(name) or name.lower() in _RESERVED:
        raise UsageError(
            f"{name!r:.80} cannot name a policy: write a letter, then letters, digits, . _ -, at "
            f"most 128 in all, and none of {', '.join(sorted(_RESERVED))}"
        )
    return name


def policy_names(runs: Path) -> list[str]:
    """The names that are given, sorted."""
    folder = runs / FOLDER
    if folder.is_symlink() or not folder.is_dir():
        return []
    return sorted(entry.name for entry in folder.iterdir() if _is_policy(entry))


def list_policies(runs: Path) -> list[NamedPolicy]:
    """Every named policy, the newest first.

    Raises:
        MtrlError: a manifest cannot be read.
    """
    found = [read_policy(runs, name) for name in policy_names(runs)]
    return sorted(found, key=lambda policy: float(policy.manifest["time"]), reverse=True)


def every_policy(runs: Path) -> list[NamedPolicy]:
    """Every named policy, also those behind symbolic links, which `list_policies` leaves out.

    Raises:
        MtrlError: a manifest cannot be read, or a link leads nowhere.
    """
    folder = runs / FOLDER
    if folder.is_symlink() and not folder.is_dir():
        raise MtrlError(
            f"{folder} is a symbolic link that leads nowhere: bring back what was there"
        )
    names = [
        entry.name
        for entry in (folder.iterdir() if folder.is_dir() else ())
        if _NAME.fullmatch(entry.name)
        and (entry.is_symlink() or os.path.lexists(entry / "manifest.json"))
    ]
    return [read_policy(runs, name) for name in sorted(names)]


def read_policy(runs: Path, name: str) -> NamedPolicy:
    """The policy of a given name (see `policy_names`).

    Raises:
        MtrlError: its manifest cannot be read.
    """
    path = runs / FOLDER / check_name(name)
    file = path / "manifest.json"
    try:
        manifest = json.loads(file_at(file).read_text(encoding="utf-8"))
        if manifest["format"] > FORMAT:
            raise MtrlError(f"{file} was written by a newer mtrl: update this one")
        for key, kind in (("uri", str), ("policy_step", int), ("time", float), ("server", dict)):
            if not isinstance(manifest[key], kind):
                raise TypeError(f"{key} is {manifest[key]!r:.40}")
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise MtrlError(f"{file} cannot be read: {error}") from error
    return NamedPolicy(name, path, manifest)


def refuse_taken(runs: Path, name: str) -> None:
    """Raise `UsageError` if the name is given already."""
    if os.path.lexists(runs / FOLDER / name):
        raise _taken(runs, name)


def write_policy(
    runs: Path, name: str, manifest: Mapping[str, Any], config_yaml: str
) -> NamedPolicy:
    """Give a name to a policy, once and for all.

    Raises:
        UsageError: the name is not one, or is given already.
        MtrlError: ``policies`` is not a folder of our own.
    """
    check_name(name)
    folder = runs / FOLDER
    if folder.is_symlink():
        raise MtrlError(
            f"{folder} is a symbolic link: named policies live in a folder of their own"
        )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=".new-", dir=folder))
    try:
        write_document(beside / "config.yaml", config_yaml)
        write_document(beside / "manifest.json", json.dumps(manifest, indent=2) + "\n")
        beside.rename(folder / name)  # fails on whatever is there, but for an empty folder
    except OSError as error:
        if os.path.lexists(folder / name):
            raise _taken(runs, name) from error
        raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return NamedPolicy(name, folder / name, manifest)


def _taken(runs: Path, name: str) -> UsageError:
    return UsageError(
        f"the name {name!r} is given already and a policy is never overwritten: see "
        f"{runs / FOLDER / name}; write another --name"
    )


def _is_policy(entry: Path) -> bool:
    if entry.is_symlink() or not _NAME.fullmatch(entry.name):
        return False
    manifest = entry / "manifest.json"
    return not manifest.is_symlink() and manifest.is_file()
