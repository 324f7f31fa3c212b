"""A run's folder: created once, private to the user, written by the run alone.

A run that is resumed goes on in its folder, as its next attempt: it appends to the same files.
``run.json`` is the one document that changes; everything else is written once or appended.
The folder's layout is described in docs/run-folder.md.
"""

import itertools
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mtrl_cli.errors import MtrlError
from mtrl_cli.runs.control import beat
from mtrl_cli.runs.files import RecordFile, redacted, write_document
from mtrl_cli.runs.ledger import Ledger
from mtrl_cli.runs.processes import process_facts
from mtrl_cli.runs.registry import attempt_began

Redact = Callable[[str], str]

SCRIPT = "script"
"""``recorded`` in the ``run.json`` of a run that a script carries out: it records what it likes."""


_LOGGED = 50
"""Different tracebacks that one attempt logs."""

_TRIES = 1000
"""Tails of one length that are tried."""

_NOTICED = 20
"""Notices of one attempt that are noted."""


def new_run_id(parent: Path) -> str:
    """A sortable name with a random tail, such as ``20261129-122135-a7aa``; no other name in
    ``parent`` has that tail, so that it names the run there."""
    taken: set[str] = set()
    with suppress(OSError):  # it is not there yet, or may not be listed
        names = [path.name for path in parent.iterdir()]
        taken.update(name.rpartition("-")[2] for name in names)
    tails = (secrets.token_hex(2 + tries // _TRIES) for tries in itertools.count())
    tail = next(tail for tail in tails if tail not in taken)
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{tail}"


class RunFolder:
    """The folder of one run, and the files that a run appends to."""

    def __init__(self, path: Path, state: dict[str, Any], redact: Redact = str) -> None:
        self.path = path
        self._state = state
        self._redact = redact
        self._borrows: Callable[[], Mapping[str, Any]] | None = None
        self._logged: set[str] = set()
        self._noticed = 0
        self._lasting: tuple[str, ...] = ()
        """Evaluations that stand when training goes on."""
        self.inherited: tuple[str, ...] = tuple(state["borrows"]["quarantined"])
        """What earlier attempts could not return, one line each."""
        self.ledger = Ledger(path / "ledger.jsonl", redact)
        self.groups = RecordFile(path / "groups.jsonl")
        self.commits = RecordFile(path / "commits.jsonl")
        self.metrics = RecordFile(path / "metrics.jsonl")
        self._write()

    @classmethod
    def create(
        cls,
        parent: Path,
        experiment: str,
        kind: str,
        config_yaml: str,
        redact: Redact = str,
        *,
        latest: bool = True,
        plays: Sequence[str] | None = None,
    ) -> "RunFolder":
        """Create the folder of a new run under ``parent``, and point ``latest`` at it.

        ``config_yaml`` is the composed experiment with its secrets masked; ``redact`` takes
        secrets out of what the run writes later, wherever the configuration copied them.
        ``latest`` False leaves the link where it points. ``plays`` are the policies that it plays,
        where it trains none: `mtrl store` keeps them meanwhile.

        Raises:
            MtrlError: it cannot be written, as on a full disk; nothing of it is left.
        """
        _refuse_obstacle(parent)
        run = new_run_id(parent)
        path = parent / run
        try:
            path.mkdir(parents=True, mode=0o700)
            write_document(path / "config.yaml", config_yaml)
            (path / "trajectories").mkdir(mode=0o700)
            beat(path)
            told = {} if plays is None else {"plays": list(plays)}
            folder = cls(path, _first_state(run, experiment, kind) | told, redact)
            if latest:
                _point_latest(parent, run)
        except OSError as error:
            shutil.rmtree(path, ignore_errors=True)
            refused = MtrlError(f"no run can be written in {str(parent)!r}: {error.strerror}")
            refused.hint = "make room there, or choose another folder: run.dir=FOLDER"
            raise refused from error
        return folder

    @classmethod
    def reopen(
        cls, path: Path, *, step: int, evaluation: bool = True, redact: Redact = str
    ) -> "RunFolder":
        """Begin the next attempt of a run that is over, at ``step``; -1 is the very beginning.

        The caller holds the run's lock. What was evaluated before training is kept with
        ``evaluation``; what was evaluated after it is not, once training goes on (`goes_on`).
        """
        state = json.loads((path / "run.json").read_text(encoding="utf-8"))
        _refuse_obstacle(path.parent)
        lacking = [key for key in _first_state("", "", "") if key not in state]
        if lacking:
            raise MtrlError(f"{path / 'run.json'} is damaged: it lacks {', '.join(lacking)}")
        attempt, now = int(state["attempt"]) + 1, round(time.time(), 3)
        resumed = {"attempt": attempt, "time": now, "step": step, "policy": None}
        if "reaped" in state:
            resumed["reaped"] = state.pop("reaped")
        state.update(
            status="running",
            reason=None,
            ended=None,
            attempt=attempt,
            resumed=[*state.get("resumed", []), resumed],
            **process_facts(os.getpid()),
        )
        beat(path)
        folder = cls(path, state, redact)
        folder._lasting = ("before",) if evaluation else ()
        _point_latest(path.parent, path.name)
        return folder

    @property
    def id(self) -> str:
        return str(self._state["id"])

    @property
    def attempt(self) -> int:
        return int(self._state["attempt"])

    @property
    def created(self) -> float:
        """When the run began, in Unix seconds."""
        return float(self._state["created"])

    @property
    def seconds(self) -> float | None:
        """How long this attempt took, once it has ended."""
        ended = self._state["ended"]
        return None if ended is None else float(ended) - attempt_began(self._state)

    @property
    def evaluation(self) -> Mapping[str, Any]:
        """What was evaluated, by ``before`` and ``after``."""
        return dict(self._state["evaluation"])

    def goes_on(self, step: int) -> None:
        """Record that training goes on from ``step``; what was evaluated after it is over."""
        told = self._state["evaluation"]
        self.update(
            step=step, evaluation={when: told[when] for when in self._lasting if when in told}
        )

    def begun_at(self, policy: str) -> None:
        """Record the policy that a resumed attempt begins from: old weights, a new name."""
        *earlier, latest = self._state["resumed"]
        self.update(policy=policy, resumed=[*earlier, {**latest, "policy": policy}])

    def count_borrows(self, count: Callable[[], Mapping[str, Any]]) -> None:
        """Record what ``count`` says of the borrows whenever ``run.json`` is written."""
        self._borrows = count

    def update(self, **facts: Any) -> None:
        """Change facts of ``run.json``."""
        self._state.update(facts)
        self._write()

    def evaluated(self, when: str, figures: Mapping[str, Any]) -> None:
        """Record an evaluation, ``before`` or ``after`` training."""
        self.update(evaluation={**self._state["evaluation"], when: dict(figures)})

    def notice(self, text: str) -> None:
        """Note what a person was told and may look for later; so many of one attempt at most."""
        if self._noticed < _NOTICED:
            self._noticed += 1
            one = {"attempt": self.attempt, "text": text}
            self.update(notices=[*self._state.get("notices", ()), one])

    def log(self, text: str) -> None:
        """Append a traceback to ``log.txt``: each once, and so many of them at most."""
        if text in self._logged or len(self._logged) >= _LOGGED:
            return
        self._logged.add(text)
        descriptor = os.open(
            self.path / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600
        )
        with os.fdopen(descriptor, "a", encoding="utf-8", errors="replace") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}\n{self._redact(text).rstrip()}\n\n")

    def end(self, status: str, reason: str | None) -> None:
        """Record the end and close the files."""
        self.update(status=status, reason=reason, ended=round(time.time(), 3))
        for file in (self.ledger, self.groups, self.commits, self.metrics):
            file.close()

    def _write(self) -> None:
        if self._borrows is not None:
            counted = dict(self._borrows())
            counted["quarantined"] = [*self.inherited, *counted["quarantined"]]
            self._state["borrows"] = counted
        text = json.dumps(redacted(self._state, self._redact), indent=2)
        write_document(self.path / "run.json", text + "\n")


def _first_state(run: str, experiment: str, kind: str) -> dict[str, Any]:
    return {
        "id": run,
        "experiment": experiment,
        "kind": kind,
        "status": "running",
        "reason": None,
        "attempt": 1,
        **process_facts(os.getpid()),
        "created": round(time.time(), 3),
        "ended": None,
        "policy": None,
        "evaluation": {},
        "borrows": {"held": 0, "quarantined": []},
    }


def _refuse_obstacle(parent: Path) -> None:
    latest = parent / "latest"
    if latest.is_dir() and not latest.is_symlink():
        raise MtrlError(f"{latest} is a folder, where a link to the newest run belongs: move it")


def _point_latest(parent: Path, run: str) -> None:
    beside = parent / f".latest-{run}"
    beside.symlink_to(run)
    beside.replace(parent / "latest")
