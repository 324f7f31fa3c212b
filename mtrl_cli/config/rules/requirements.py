"""What an experiment needs of its server, held against what the server declares.

The declaration is that of a connected client (`servers.interface.Capabilities`), or, before any
contact, what the configuration says (`capabilities.declared`).
"""

from collections.abc import Iterator
from typing import Protocol

from mtrl_cli.config.schema import Experiment
from mtrl_cli.errors import UsageError


class Able(Protocol):
    """What is asked of a declaration; the words are those of `Capabilities`."""

    @property
    def snapshots(self) -> str: ...
    @property
    def policy_logprobs(self) -> bool: ...
    @property
    def full_training(self) -> bool: ...
    @property
    def losses(self) -> frozenset[str]: ...
    @property
    def loss_reduction(self) -> str | None: ...
    @property
    def context(self) -> int | None: ...


def check_capabilities(capabilities: Able, experiment: Experiment) -> None:
    """Refuse what the server cannot do, before any of it is needed.

    Raises:
        UsageError: naming the setting, and what to write instead.
    """
    for problem in unmet(capabilities, experiment):
        raise UsageError(problem)


def unmet(capabilities: Able, experiment: Experiment) -> Iterator[str]:
    """What a training asks for and the server cannot do: the setting, and what to write instead."""
    train, server = experiment.train, experiment.server
    if train.lora_rank is None and not capabilities.full_training:
        yield "train.lora_rank: null trains all weights, which this server cannot; write a rank"
    if train.loss.value not in capabilities.losses:
        yield (
            f"train.loss: {train.loss.value} is not computed by this server; write one of "
            f"{', '.join(sorted(capabilities.losses))}"
        )
    if train.kl and not (capabilities.policy_logprobs and capabilities.snapshots == "immutable"):
        yield (
            f"train.kl: {train.kl:g} needs logprobs of the initial policy throughout the run, "
            f"which this server cannot give (its snapshots are {capabilities.snapshots}); write "
            "train.kl=0, or server.snapshots=immutable if it does keep them"
        )
    if train.max_tokens_per_call and capabilities.loss_reduction is None:
        yield (
            "train.max_tokens_per_call: several calls cannot be weighted on a server whose loss "
            "reduction is not known; write server.loss_reduction (sum, datum_mean or call_mean), "
            "or train.max_tokens_per_call=0"
        )
    if capabilities.context is not None and server.context > capabilities.context:
        yield (
            f"server.context: {server.context} is more than the server's window of "
            f"{capabilities.context} tokens"
        )
