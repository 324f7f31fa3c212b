"""Which policy ``policy=`` means: read from the run folders, before anything is created.

============================  ==================================================================
written                       means
============================  ==================================================================
null                          the base model
``scheme://…``                a policy by the URI that its server gave it
``NAME``                      a policy that `mtrl publish` named
``RUN@STEP``, ``RUN@last``    what a run committed; RUN is its id, a prefix or the tail of it, or
                              ``last``, the newest run that trains
``last``                      the last commit of the newest training run
============================  ==================================================================

A policy lives on one server. Where the name says which one, an experiment that leads to another
is refused with the keys to set.
"""

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtrl_cli.config.keys import nearest
from mtrl_cli.config.schema import Experiment, ServerConfig, ServerKind
from mtrl_cli.errors import MtrlError, UsageError
from mtrl_cli.rollout.policy import PolicySnapshot
from mtrl_cli.runs.commits import Commit, History, read_history
from mtrl_cli.runs.places import store_of
from mtrl_cli.runs.policies import policy_names, read_policy
from mtrl_cli.runs.registry import NoSuchRun, RunRecord, find_run, given_up, newest_trained, run_at

if TYPE_CHECKING:
    from mtrl_cli.servers.interface import TrainingService

_URI = re.compile(r"([a-z][a-z0-9+.-]*)://(\S+)")
_SAMPLED = re.compile(r"tinker://[^/\s]+/sampler_weights/\S+")
_BASE = "base"
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class ChosenPolicy:
    """What ``policy=`` stands for."""

    uri: str
    step: int
    """Optimizer steps that made it, as far as it is known; else 0."""
    initial: str | None = None
    """URI of the policy that its run began from, where it comes from a run."""
    task: str | None = field(default=None, compare=False)
    """The task that it was trained on, where it comes from a run or has a name."""
    config: Path | None = field(default=None, compare=False)
    """The file that composes what it was trained on."""

    def strange_to(self, experiment: Experiment) -> str | None:
        """A warning, where another task is played than the one that it was trained on."""
        played = experiment.task.entrypoint
        if self.task is None or self.task == played:
            return None
        return (
            f"the policy was trained on the task {self.task}, and {played} is played;"
            f" conf={self.config} plays its own"
        )


def choose_policy(experiment: Experiment, asked: str | None) -> ChosenPolicy | None:
    """The policy that ``asked`` names; None stands for the base model.

    Raises:
        UsageError: there is no such policy, or it lives on another server.
        MtrlError: the files of a run or of a named policy are damaged, or the run was given up.
    """
    if asked is None:
        return None
    if "://" in asked:
        return _by_uri(asked, experiment.server)
    runs = Path(experiment.run.dir)
    if asked == "last" or "@" in asked:
        return _by_run(asked, runs, experiment.server)
    if asked in policy_names(runs):
        policy = read_policy(runs, asked)
        _require_same_server(policy.server, experiment.server, asked)
        config = policy.path / "config.yaml"
        return ChosenPolicy(policy.uri, policy.policy_step, policy.initial, policy.task, config)
    raise _no_policy(asked, runs)


async def held_policy(service: "TrainingService", chosen: ChosenPolicy | None) -> PolicySnapshot:
    """The policy to play, once the server is connected.

    Raises:
        MtrlError: the server lists its snapshots, and this one is not among them.
    """
    if chosen is None:
        return PolicySnapshot(await service.base_policy(), 0)
    if not chosen.uri.startswith(f"{_BASE}://") and not await is_held(service, chosen.uri):
        raise MtrlError(
            f"policy {chosen.uri} is not on {service.describe()}: it was deleted, or "
            "server.store or server.base_url leads to another place"
        )
    return PolicySnapshot(chosen.uri, chosen.step)


async def is_held(service: "TrainingService", uri: str) -> bool:
    """Whether the server holds a snapshot, as far as it lists them."""
    from mtrl_cli.servers.interface import CannotList, SnapshotStore  # with numpy

    if isinstance(service, SnapshotStore):
        with contextlib.suppress(CannotList):
            return await service.snapshot(uri) is not None
    return True


def server_facts(server: ServerConfig) -> dict[str, Any]:
    """Where a policy lives, in the words of the configuration; nothing secret."""
    embedded = server.kind is ServerKind.local and server.base_url is None
    return {
        "kind": server.kind.value,
        "base_url": server.base_url,
        "store": _store(server) if embedded else None,
        "base_model": server.base_model,
        "tokenizer": server.tokenizer,
        "renderer": server.renderer,
    }


def trained_run(runs: Path, asked: str) -> RunRecord:
    """The training run that ``asked`` names: as `find_run`, but ``last`` is the newest that trains.

    Raises:
        NoSuchRun: there is none.
        UsageError: it trains nothing.
    """
    if asked == "last":
        newest = newest_trained(runs)
        if newest is None:
            raise NoSuchRun(f"no run in {runs} trains (see --runs-dir)")
        return newest
    run = find_run(runs, asked)
    if (kind := run.state.get("kind")) != "train":
        raise UsageError(f"run {run.id} is of the kind {kind!r}: it made no policy")
    return run


def commit_at(history: History, step: int | None, run: str) -> Commit:
    """The standing commit of a step; the last one where ``step`` is None.

    Raises:
        UsageError: there is none, says which there are.
    """
    if history.last is None:
        raise UsageError(f"run {run} has committed no policy yet")
    commit = history.last if step is None else history.at(step)
    if commit is None:
        raise UsageError(f"run {run} has no step {step}: its commits are 0 to {history.last.step}")
    return commit


# --- inside -------------------------------------------------------------------------------------


def _experiment(config: Path) -> Experiment:
    """What a configuration says, without its secrets."""
    from mtrl_cli.config.compose import compose
    from mtrl_cli.config.resolve import resolve

    return resolve(compose(str(config)), secrets=False)


def _by_uri(asked: str, server: ServerConfig) -> ChosenPolicy:
    match = _URI.fullmatch(asked)
    if match is None:
        raise UsageError(f"policy={asked!r:.120} is not a URI: write scheme://NAME, without spaces")
    scheme, rest = match.groups()
    if scheme == _BASE and rest != server.base_model:
        raise UsageError(
            f"policy={asked} is another base model than server.base_model ({server.base_model})"
        )
    if scheme == "tinker" and server.kind in (ServerKind.local, ServerKind.tinker):
        model, _, name = rest.partition("/")
        if name.startswith("weights/"):
            raise UsageError(
                f"policy={asked!r:.120} is a training state, which cannot be sampled: write "
                "tinker://MODEL/sampler_weights/NAME"
            )
        # Some servers leave the kind out; the embedded one never does.
        local = server.kind is ServerKind.local
        if not (model and name) or (local and not _SAMPLED.fullmatch(asked)):
            raise UsageError(
                f"policy={asked!r:.120} is not a policy: write tinker://MODEL/sampler_weights/NAME"
            )
    elif scheme != _BASE and server.kind is ServerKind.local:
        raise UsageError(
            f"policy={asked!r:.120}: the embedded server's policies begin with tinker://"
        )
    return ChosenPolicy(asked, 0)


def _by_run(asked: str, runs: Path, server: ServerConfig) -> ChosenPolicy:
    name, step = run_at(asked, f"policy={asked}", last=True)
    try:
        run = trained_run(runs, name)
    except NoSuchRun as error:
        raise UsageError(f"policy={asked}: {error}") from error
    if told := given_up(run):
        refused = MtrlError(f"policy={asked}: {told}")
        refused.hint = "what has a name is kept: mtrl publish --list"
        raise refused
    history = read_history(run.path / "commits.jsonl")
    commit = commit_at(history, step, run.id)
    config = run.path / "config.yaml"
    own, initial = _experiment(config), history.initial
    _require_same_server(server_facts(own.server), server, asked)
    began = initial.policy if initial else None
    return ChosenPolicy(commit.policy, commit.policy_step, began, own.task.entrypoint, config)


def _no_policy(asked: str, runs: Path) -> UsageError:
    names = policy_names(runs)
    near = nearest(asked, [*names, "last"])
    guess = f"did you mean policy={near}? " if near else ""
    shown = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
    there = f"there are: {shown}" if names else "there are none"
    try:
        found = find_run(runs, asked)
    except NoSuchRun:
        also = "write a name, a URI (scheme://…) or RUN@STEP"
    else:
        also = f"for the run write policy={found.id}@last"
    return UsageError(f"no policy {asked!r:.80} in {runs / 'policies'}; {guess}{there}; {also}")


def _require_same_server(of: Mapping[str, Any], server: ServerConfig, asked: str) -> None:
    """Refuse an experiment whose server is not the one that holds the policy.

    A store and an address cannot be compared with each other: whether a running local server
    works on that store is found out when it is asked for the policy.
    """
    here = server_facts(server)
    differing = [
        key
        for key in ("kind", "base_model", "tokenizer", "renderer", "base_url", "store")
        if of.get(key) != here[key] and not (_is_place(key) and None in (of.get(key), here[key]))
    ]
    if not differing:
        return
    told = ", ".join(f"server.{key} is {here[key]}, not {of.get(key)}" for key in differing)
    keys = " ".join(_setting(key, of.get(key)) for key in differing)
    raise UsageError(f"policy={asked} lives on another server: {told}; write {keys}")


def _is_place(key: str) -> bool:
    return key in ("base_url", "store")


def _setting(key: str, value: Any) -> str:
    if key == "kind":
        return f"server={value}"
    text = "null" if value is None else str(value)
    plain = re.fullmatch(r"[\w./-]+", text) is not None
    return f"server.{key}={text}" if plain else f"'server.{key}=\"{text}\"'"


def _store(server: ServerConfig) -> str:
    return str(store_of(server.store).resolve())
