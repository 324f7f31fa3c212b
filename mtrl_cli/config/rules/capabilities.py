"""What a training service can do, where that comes from, and what it changes in the plan of a run.

A *capability* is told as one value with its *source*: ``known`` (mtrl knows this kind of server),
``configured`` (a key of ``server`` says so), ``assumed`` (the cautious value for a server that mtrl
does not know), ``found`` (the server said it when it was connected to). What a server cannot do is
never made up for in silence: `Capability.changes` says in words what is done otherwise.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mtrl_cli.config.rules.assumed import assumed, is_known
from mtrl_cli.config.schema import Experiment, Loss, LossReduction, ServerKind, Snapshots

Source = Literal["known", "configured", "assumed", "found"]


@dataclass(frozen=True, slots=True)
class Capability:
    """One property of a server."""

    name: str
    value: Any
    """None: not known before the server is contacted."""
    source: Source
    changes: str | None = None
    """What it changes in the plan of a run; None where nothing."""


def capabilities(
    experiment: Experiment, found: Mapping[str, Any] | None = None
) -> tuple[Capability, ...]:
    """The capabilities of the experiment's server; ``found`` is what it said of itself."""
    told = found or {}
    return tuple(
        Capability(one.name, told[one.name], "found", _CHANGES[one.name](told[one.name]))
        if one.name in told and one.name in _CHANGES
        else one
        for one in _declared(experiment)
    )


def _declared(experiment: Experiment) -> Iterator[Capability]:
    server, facts = experiment.server, assumed(experiment.server)
    local, twinkle = server.kind is ServerKind.local, server.kind is ServerKind.twinkle
    otherwise: Source = "known" if is_known(server) else "assumed"

    def source(key: str) -> Source:
        return otherwise if getattr(server, key) is None else "configured"

    yield Capability(
        "snapshots", facts.snapshots.value, source("snapshots"), _SNAPSHOTS.get(facts.snapshots)
    )
    yield Capability(
        "dedupes",
        facts.dedupes,
        source("dedupes"),
        None if facts.dedupes else "a training call of unknown outcome ends the run",
    )
    reduction = facts.loss_reduction
    yield Capability(
        "loss_reduction",
        None if reduction is None else reduction.value,
        source("loss_reduction"),
        _REDUCTIONS.get(reduction),
    )
    yield Capability(
        "leaks_gradients",
        facts.leaks_gradients,
        source("leaks_gradients"),
        "a run that broke off between a backward pass and its step is resumed with --force only"
        if facts.leaks_gradients
        else None,
    )
    yield Capability(
        "policy_logprobs",
        not twinkle,
        "known",
        "no KL penalty (train.kl is 0), and no audit of groups of an older policy"
        if twinkle
        else None,
    )
    yield Capability(
        "reports_weights",
        local,
        "known" if local or twinkle else "assumed",
        None if local else "samples are not checked against the weights that made them",
    )
    yield Capability(
        "tempered_logprobs",
        twinkle,
        "known" if is_known(server) else "assumed",
        None if twinkle else untempered(experiment.group.temperature),
    )
    yield Capability(
        "full_training",
        local,
        "known" if local or twinkle else "assumed",
        None if local else "a LoRA adapter is trained (train.lora_rank)",
    )
    if twinkle:
        yield Capability("cancels", False, "known", _cancels(False))
    else:
        yield Capability("cancels", None, "known")


def untempered(temperature: float) -> str | None:
    """What a temperature does where logprobs are those of temperature 1."""
    if temperature == 1:
        return None
    return (
        f"group.temperature is {temperature:g} and logprobs are those of temperature 1: tokens are"
        " sampled from another distribution than the one that is trained, the importance ratio"
        " does not make up for it, and the gradient is not that of the reward; for an exact one"
        " write group.temperature=1"
    )


@dataclass(frozen=True, slots=True)
class Declared:
    """The declared capabilities that decide whether an experiment can be trained; fields as in
    `servers.interface.Capabilities`. ``context`` is only found out."""

    snapshots: str
    policy_logprobs: bool
    full_training: bool
    losses: frozenset[str]
    loss_reduction: str | None
    context: int | None = None


def declared(experiment: Experiment) -> Declared:
    """What is known of the experiment's server before it is contacted."""
    told = {one.name: one.value for one in capabilities(experiment)}
    twinkle = experiment.server.kind is ServerKind.twinkle
    losses = Loss if twinkle else (Loss.importance_sampling, Loss.ppo, Loss.cispo)
    return Declared(
        snapshots=told["snapshots"],
        policy_logprobs=told["policy_logprobs"],
        full_training=told["full_training"],
        losses=frozenset(loss.value for loss in losses),
        loss_reduction=told["loss_reduction"],
    )


_SNAPSHOTS = {
    Snapshots.newest_only: (
        "groups in flight finish before each save; no KL penalty (train.kl is 0)"
    ),
    Snapshots.live: (
        "groups in flight finish before each optimizer step; no KL penalty (train.kl is 0)"
    ),
}

_REDUCTIONS: Mapping[LossReduction | None, str] = {
    None: "a step is one call, weighted as for a sum; train.max_tokens_per_call is refused",
    LossReduction.datum_mean: "each datum is weighted by its length, to undo the server's mean",
    LossReduction.call_mean: "each call is weighted, to undo the server's mean over calls",
}


def _cancels(value: Any) -> str | None:
    return None if value else "turns that a stop gives up are sampled to their end by the server"


_CHANGES = {"cancels": _cancels}
"""What may be found out, and what it then changes."""
