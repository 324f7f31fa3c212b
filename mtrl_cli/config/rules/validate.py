"""Ranges, and rules across keys, that types cannot say.

Every problem is found in one pass and says the key, what it is, and what is allowed.
"""

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from mtrl_cli.config.rules.assumed import EMBEDDED_WINDOW
from mtrl_cli.config.rules.losses import loss_problems
from mtrl_cli.config.rules.sandboxes import sandbox_limits
from mtrl_cli.config.schema import EnvConfig, EnvKind, Experiment, ServerKind, Snapshots

FILTERED_LOGPROBS: frozenset[ServerKind] = frozenset()
"""Servers that declare whose logprobs they return when top_k or top_p cut the distribution.

Trained logprobs must be those of the distribution that was sampled; where a server does not say
so, the filters are refused for training."""


@dataclass(frozen=True)
class Bound:
    """A test of one number, and what it allows, in words."""

    holds: Callable[[float], bool]
    allowed: str


def _at_least(low: float) -> Bound:
    return Bound(lambda value: value >= low, f"at least {low:g}")


def _between(low: float, high: float) -> Bound:
    """Where a slip of the keyboard would fill the memory, or be refused by the server once the
    first step is played."""
    return Bound(lambda value: low <= value <= high, f"from {low:,} to {high:,}")


def _above(low: float) -> Bound:
    return Bound(lambda value: value > low, f"above {low:g}")


_SHARE = Bound(lambda value: 0 < value <= 1, "above 0 and at most 1")
_DECAY = Bound(lambda value: 0 <= value < 1, "at least 0 and below 1")
_TOP_K = Bound(lambda value: value == -1 or value >= 1, "-1 (off) or at least 1")
_ANY = Bound(lambda value: True, "any finite number")

LARGEST_INTEGER = 2**53
"""Of every key that is an integer: JSON's own limit, where it is to be exact."""
LONGEST_PATH = 4_000
"""Characters of an entrypoint: no system's paths are longer."""
_SHOWN = 200
"""Characters of a text in a message."""
LARGEST_NUMBER = 1_000_000_000
"""Of every other number: 31 years, where it is seconds; clocks and threads take no more."""

BOUNDS: dict[str, Bound] = {
    "seed": _at_least(0),
    "server.context": _between(2, 10_000_000),
    "server.connections": _at_least(1),
    "server.sample_timeout": _above(0),
    "server.training_timeout": _above(0),
    "server.tokens_per_call": _at_least(1),
    "env.max_observation": _at_least(1),
    "env.threads": _at_least(0),
    "env.open_timeout": _above(0),
    "env.reset_timeout": _above(0),
    "env.step_timeout": _above(0),
    "env.close_timeout": _above(0),
    "env.e2b.at_once": _at_least(1),
    "env.e2b.per_second": _above(0),
    "env.e2b.longest": _above(0),
    "env.e2b.settles": _at_least(0),
    "task.unfinished_reward": _between(-1_000_000, 1_000_000),
    "group.size": _between(1, 100_000),
    "group.per_step": _between(1, 100_000),
    "group.temperature": _between(0, 1_000),
    "group.top_k": _TOP_K,
    "group.top_p": _SHARE,
    "group.max_refills": _at_least(0),
    "group.floor": _at_least(1),
    "budget.turn_tokens": _at_least(1),
    "budget.trajectory_tokens": _at_least(2),
    "budget.max_turns": _at_least(1),
    "budget.deadline": _above(0),
    "train.steps": _at_least(1),
    "train.max_tokens_per_call": _at_least(0),
    "train.learning_rate": _between(0, 1_000_000),
    "train.warmup_steps": _at_least(0),
    "train.beta1": _DECAY,
    "train.beta2": _DECAY,
    "train.eps": _between(1e-30, 1),
    "train.weight_decay": _between(0, 1_000_000),
    "train.grad_clip_norm": _between(0, 1_000_000),
    "train.kl": _between(0, 1_000_000),
    "train.kl_end_step": _at_least(1),
    "train.lora_rank": _between(1, 4_096),
    "train.lora_alpha": _between(0.001, 1_000_000),
    "train.max_policy_lag": _at_least(0),
    "train.checkpoint_every": _at_least(0),
    "audit.every": _at_least(0),
    "audit.warn_max": _at_least(0),
    "audit.warn_mean": _at_least(0),
    "audit.stop_max": _at_least(0),
    "audit.stop_mean": _at_least(0),
    "audit.limit": _above(0),
    "eval.games": _between(0, 1_000_000),
    "eval.every": _at_least(0),
    "eval.games_during": _between(1, 1_000_000),
    "eval.seed": _at_least(0),
    "run.concurrency": _at_least(1),
    "run.drain_timeout": _at_least(0),
}


def validate(experiment: Experiment, *, training: bool = True) -> list[str]:
    """What is wrong with an experiment, each as ``key is VALUE; allowed: …``.

    ``training`` adds what only an optimisation needs.
    """
    problems = [*_ranges(experiment), *_texts(experiment)]
    if problems:
        return problems  # what spans keys makes sense only within their ranges
    problems = list(_across(experiment))
    if training:
        problems += _for_training(experiment)
    return problems


def _ranges(experiment: Experiment) -> Iterator[str]:
    for key, bound in BOUNDS.items():
        value = _get(experiment, key)
        if value is None:
            continue
        if not (_finite(value) and bound.holds(value)):
            yield _problem(key, value, bound.allowed)
        elif abs(value) > (most := LARGEST_INTEGER if isinstance(value, int) else LARGEST_NUMBER):
            yield _problem(key, value, f"at most {most:,}")
    wrong = [
        _problem(f"train.loss_config.{name}", value, _ANY.allowed)
        for name, value in experiment.train.loss_config.items()
        if not isinstance(value, int | float) or not _finite(value)
    ]
    yield from wrong or (
        _problem(f"train.loss_config.{name}", value, allowed)
        for name, value, allowed in loss_problems(experiment.train, experiment.server.kind)
    )


def _texts(experiment: Experiment) -> Iterator[str]:
    if not experiment.name.strip():
        yield _problem("name", experiment.name, "a name")
    for key in ("env.entrypoint", "env.app", "task.entrypoint"):
        if (value := _get(experiment, key)) is None:
            continue
        module, _, attribute = str(value).rpartition(":")
        if not module or not attribute.isidentifier():
            form = "module:app" if key == "env.app" else "module:Class or path.py:Class"
            yield _problem(key, value, form)
        elif len(value) > LONGEST_PATH:
            yield _problem(key, value, f"at most {LONGEST_PATH:,} characters")
    for key in ("server.store", "server.tokenizer"):
        value = _get(experiment, key)
        if value is not None and os.path.expanduser(value).startswith("~"):  # noqa: PTH111
            yield _problem(key, value, "~ or ~USER of a user who is on this machine, or no ~")
    for key in ("server.base_url", "env.base_url"):
        url = _get(experiment, key)
        if url is not None and not url.startswith(("http://", "https://")):
            yield _problem(key, url, "an address that begins with http:// or https://")
        elif url is not None and not _is_address(url):
            yield _problem(
                key, url, "http://HOST:PORT/PATH with a port up to 65,535, no ? and no #"
            )
        elif url is not None and key == "server.base_url" and "@" in urlsplit(url).netloc:
            allowed = "an address without a user name or password; the key is server.api_key"
            yield _problem(key, url, allowed)


def _is_address(url: str) -> bool:
    """Whether something can be asked for below it."""
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0 and not (parts.query or parts.fragment)
    except ValueError:  # half of a bracket, a port that is no number or too large
        return False


def _across(experiment: Experiment) -> Iterator[str]:
    server, group, budget = experiment.server, experiment.group, experiment.budget
    if server.kind is not ServerKind.local and server.base_url is None:
        kind = server.kind.value
        yield _problem("server.base_url", None, f"the server's address, with server.kind {kind}")
    if server.kind is ServerKind.twinkle:
        if server.snapshots not in (None, Snapshots.newest_only):
            yield _problem(
                "server.snapshots",
                server.snapshots.value,
                "newest_only, which is what Twinkle does",
            )
        if server.dedupes:
            yield _problem("server.dedupes", "true", "false: Twinkle executes what it gets twice")
    if server.kind is ServerKind.local and server.base_url is None:
        window = EMBEDDED_WINDOW.get(server.base_model)
        if window is not None and server.context > window:
            allowed = f"at most {window:,}, the window of {server.base_model}"
            yield _problem("server.context", server.context, allowed)
    yield from _environment(experiment.env)
    if budget.trajectory_tokens > server.context:
        yield _problem(
            "budget.trajectory_tokens",
            budget.trajectory_tokens,
            f"at most server.context ({server.context})",
        )
    if budget.turn_tokens > budget.trajectory_tokens:
        yield _problem(
            "budget.turn_tokens",
            budget.turn_tokens,
            f"at most budget.trajectory_tokens ({budget.trajectory_tokens})",
        )
    bound = experiment.train.max_tokens_per_call
    if bound and bound < budget.trajectory_tokens:
        yield _problem(
            "train.max_tokens_per_call",
            bound,
            f"0 (one call), or at least budget.trajectory_tokens ({budget.trajectory_tokens}): "
            "a trajectory is not cut",
        )
    if experiment.env.kind is EnvKind.e2b:
        yield from _for_e2b(experiment)
    # A floor above a size of 1 is harmless where nothing is trained: the size rules.
    if group.floor > max(group.size, 2):
        yield _problem("group.floor", group.floor, f"at most group.size ({group.size})")


def _for_e2b(experiment: Experiment) -> Iterator[str]:
    e2b, longest = experiment.env.e2b, sandbox_limits(experiment.env.e2b).longest
    if not e2b.api_key:
        yield _problem("env.e2b.api_key", e2b.api_key, "the key of an E2B account")
    if experiment.budget.deadline > longest:
        yield _problem(
            "budget.deadline",
            experiment.budget.deadline,
            f"at most the life of a sandbox, env.e2b.longest ({longest:g})",
        )


def _environment(env: EnvConfig) -> Iterator[str]:
    """What each kind of environment needs."""
    if env.kind in (EnvKind.openenv, EnvKind.e2b) and env.entrypoint is None:
        yield _problem("env.entrypoint", None, f"module:Class, with env.kind {env.kind.value}")
    if env.kind is EnvKind.openenv_served and env.app is None and env.entrypoint is None:
        yield _problem(
            "env.app", None, "module:app, or env.entrypoint, with env.kind openenv_served"
        )
    if env.kind is EnvKind.openenv_remote and env.base_url is None:
        yield _problem("env.base_url", None, "the server's address, with env.kind openenv_remote")


def _for_training(experiment: Experiment) -> Iterator[str]:
    group, kind = experiment.group, experiment.server.kind
    if experiment.policy is not None:
        yield _problem(
            "policy", experiment.policy, "null for training: it starts at the base model"
        )
    if group.size < 2:
        yield _problem(
            "group.size", group.size, "at least 2 for training: a group of one has no advantage"
        )
    if group.temperature == 0:
        yield _problem("group.temperature", group.temperature, "above 0 for training")
    if kind not in FILTERED_LOGPROBS:
        why = f"a {kind.value} server does not say whose logprobs it returns otherwise"
        if group.top_k != -1:
            yield _problem("group.top_k", group.top_k, f"-1 for training: {why}")
        if group.top_p != 1:
            yield _problem("group.top_p", group.top_p, f"1.0 for training: {why}")


def _finite(value: float) -> bool:
    """Also of integers that no float can hold."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _get(experiment: Experiment, key: str) -> Any:
    value: Any = experiment
    for part in key.split("."):
        value = getattr(value, part)
    return value


def _quoted(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _problem(key: str, value: Any, allowed: str) -> str:
    number = isinstance(value, int | float)
    if number and isinstance(value, int) and not _finite(value):
        return f"{key} is a number of more than 300 digits; allowed: {allowed}"
    shown = "null" if value is None else f"{value:g}" if number else _quoted(value)
    if number and not math.isfinite(value):
        shown += ", which is not a number" if math.isnan(value) else ", which is not finite"
    return f"{key} is {shown}; allowed: {allowed}"
