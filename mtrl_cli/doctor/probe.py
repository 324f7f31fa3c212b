"""The server, asked for little: a turn with its logprobs, a stop token, the same tokens again.

*Sample*: one turn as an episode would ask for it, held to the token rules of `rollout.tokens`.
*Play*: a few whole first turns of the embedded model, which knows one game's words alone, are read
as an episode reads them: where none could be executed, training learns nothing. Another model is
not asked: its turns may be long.
*Stop*: the base model's likeliest token is asked for at temperature 0, and then given as the only
stop id: what comes back says whether a sampled stop token is part of the tokens.
*Parity*: a small model is created as training would create it, the sampled turn is sent through one
forward/backward call, and the trainer's logprobs are held against the sampler's, within the
thresholds of the audit. The model is never stepped with a learning rate above 0, and is unloaded.
A server that leaks gradients hands those of an unloaded model on to the next one in its place:
there, one optimizer step at learning rate 0 consumes them first. It leaves the weights as they are
(Adam's step and its decoupled weight decay are both scaled by the learning rate).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mtrl_cli.config.rules.capabilities import capabilities
from mtrl_cli.config.schema import Experiment
from mtrl_cli.doctor.report import Speaker, Told
from mtrl_cli.rollout import trajectory
from mtrl_cli.rollout.ports import (
    Chat,
    RefusedTrajectory,
    SampleRequest,
    SamplingParams,
    ToolSpec,
)
from mtrl_cli.rollout.resources import Scope
from mtrl_cli.rollout.tokens import TokenSequence
from mtrl_cli.rollout.trajectory import CallRecord, Stop
from mtrl_cli.runs.ledger import Ledger
from mtrl_cli.servers.errors import ServerError
from mtrl_cli.servers.interface import Capabilities, TrainingService
from mtrl_cli.training.operations import Operations
from mtrl_cli.training.plan import TrainingPlan
from mtrl_cli.training.step.batch import datum, sampled_positions
from mtrl_cli.training.step.parity import Pair, likely_cause, parity_figures
from mtrl_cli.training.telling.batches import embedded
from mtrl_cli.training.telling.calling import Turns, advice, judged_turn, tool_names

_MOST_TOKENS = 32
"""Of the sampled turn: enough to compare, cheap anywhere."""
_SEEDS = 4
"""Turns that are sampled to see one stop by itself."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A sampled turn: the prompt and what was sampled, checked."""

    prompt: Sequence[int]
    tokens: TokenSequence
    """The prompt, and what was sampled after it."""
    policy: str


def told_capabilities(
    speaker: Speaker, experiment: Experiment, said: Capabilities
) -> list[dict[str, Any]]:
    """Say what the server can do, and what that changes; the facts, for JSON."""
    found: Mapping[str, Any] = {"cancels": said.cancels}
    facts = []
    for one in capabilities(experiment, found):
        facts.append({"name": one.name, "value": one.value, "source": one.source})
        value = "not known" if one.value is None else str(one.value).lower()
        words = f"{one.name}: {value} ({one.source})" + (f": {one.changes}" if one.changes else "")
        if one.source == "assumed" and one.changes is not None:
            key = f"server.{one.name}"
            known = one.name in ("snapshots", "dedupes", "loss_reduction", "leaks_gradients")
            speaker.warn(words, f"if you know better, set {key}" if known else None)
        else:
            speaker.ok(words)
    if said.context is not None:
        speaker.ok(
            f"context: {said.context:,} tokens, server.context {experiment.server.context:,}"
        )
    return facts


async def sampled(
    speaker: Speaker,
    service: TrainingService,
    experiment: Experiment,
    policy: str,
    prompt: Sequence[int],
    chat: Chat,
) -> Turn:
    """Sample a turn under a policy, and check it.

    Raises:
        RolloutError: sampling failed, or what came breaks a rule.
    """
    plan = TrainingPlan(experiment)
    most = min(_MOST_TOKENS, plan.budget.turn_tokens)
    turn, first, ends = None, None, 0
    stop_ids, vocabulary = chat.stop_ids, chat.vocabulary
    for seed in range(_SEEDS):
        request = SampleRequest(policy, prompt, most, stop_ids, seed, plan.sampling)
        sample = await service.sample(request)
        tokens = TokenSequence(prompt)
        if not sample.tokens:
            raise Told("a sample holds no token", "see whether the server's model is whole")
        try:
            tokens.append_sampled(sample, policy, most, vocabulary)
        except RefusedTrajectory as error:
            if error.reason != "unknown_token":
                raise
            remedy = "set server.tokenizer to the tokenizer of server.base_model"
            raise Told(str(error), remedy) from error
        if turn is None or len(tokens) > len(turn.tokens):
            turn = Turn(prompt, tokens, policy)
        if first is None:
            first = sample
        if sample.stop_reason == "stop":
            ends += 1
            if sample.tokens[-1] not in stop_ids:
                speaker.warn(
                    f"a turn stopped, and its last token {sample.tokens[-1]} is none of the stop"
                    f" ids {list(stop_ids)}: the end marker is inserted, and not trained",
                    "see whether server.tokenizer is the model's own",
                )
                break
    assert turn is not None
    assert first is not None
    count = turn.tokens.sampled_count
    speaker.ok(
        f"{count} tokens with {count} logprobs, finite and ≤ 0, ids from 0 to {vocabulary - 1};"
        f" {ends} of {_SEEDS} turns stopped by themselves within {most} tokens"
    )
    if first.policy is not None:
        speaker.ok("the server says which weights it sampled, and they are those asked for")
    return turn


async def played(
    speaker: Speaker,
    service: TrainingService,
    experiment: Experiment,
    turn: Turn,
    chat: Chat,
    tools: Sequence[ToolSpec],
) -> None:
    """Warn where none of a few whole first turns calls a tool as it could be executed.

    Raises:
        RolloutError: sampling failed.
    """
    plan, names = TrainingPlan(experiment), tool_names(tools)
    turns, room = Turns(), experiment.server.context - len(turn.prompt)
    most = min(plan.budget.turn_tokens, room)
    for seed in range(_SEEDS):
        request = SampleRequest(turn.policy, turn.prompt, most, chat.stop_ids, seed, plan.sampling)
        sample = await service.sample(request)
        said, cut = chat.read(sample.tokens, tools), sample.stop_reason == "length"
        calls = [
            CallRecord(call.name, call.error or "", 0.0, False, call.error is not None, {})
            for call in (() if cut else said.calls)
        ]
        played = trajectory.Turn(said.text, len(sample.tokens), tuple(calls))
        turns.add([judged_turn(played, Stop.TURN_TOKENS if cut else Stop.ANSWER, names)])
    renderer = experiment.server.renderer
    if (found := advice(turns, names, renderer, embedded=embedded(experiment.server))) is not None:
        speaker.warn(found)


async def stopped(speaker: Speaker, service: TrainingService, turn: Turn, chat: Chat) -> None:
    """Find out what the server makes of a stop token."""
    greedy = SamplingParams(temperature=0.0)

    def asked(most: int, stop: tuple[int, ...]) -> SampleRequest:
        return SampleRequest(turn.policy, turn.prompt, most, stop, 0, greedy)

    first = await service.sample(asked(1, chat.stop_ids))
    if not first.tokens:
        raise Told(
            f"a turn of at most one token holds none, and ended with {first.stop_reason!r}",
            "whether stop ids are honoured could not be seen: see whether the server returns them",
        )
    likeliest = first.tokens[0]
    sample = await service.sample(asked(2, (likeliest,)))
    if list(sample.tokens) == [likeliest] and sample.stop_reason == "stop":
        speaker.ok("a sampled stop token ends the turn, and comes back with its logprob")
    elif not sample.tokens and sample.stop_reason == "stop":
        speaker.warn(
            "a sampled stop token ends the turn, and does not come back: the end marker is"
            " inserted, and not trained",
            "have the server return stop tokens, if it can",
        )
    elif sample.tokens and sample.tokens[0] == likeliest:
        raise Told(
            f"token {likeliest} was sampled, is a stop id, and the turn went on: stop ids are not"
            " honoured",
            "turns then end at budget.turn_tokens only; use a server that honours stop ids",
        )
    else:
        speaker.warn(
            "whether stop ids are honoured could not be seen: the same context gave two different"
            " likeliest tokens"
        )


async def scored_again(
    speaker: Speaker,
    service: TrainingService,
    turn: Turn,
    stop_ids: tuple[int, ...],
    limit: float,
) -> None:
    """Compare the sampled logprobs with what the server gives for the same tokens afterwards, and
    see that it knows the ids of the end markers."""
    if not service.capabilities.policy_logprobs:
        speaker.ok("the server gives no logprobs of given tokens; nothing to compare")
        return
    ids = [*turn.tokens.ids, *stop_ids]
    try:
        again = await service.logprobs(turn.policy, ids)
    except ServerError as error:
        raise Told(str(error), "train.kl needs it: write train.kl=0, or another server") from None
    given = np.asarray(again, dtype=np.float64)
    if not np.isfinite(given[len(turn.tokens) :]).all():
        raise Told(
            f"the server has no logprobs of the stop ids {list(stop_ids)}",
            "set server.tokenizer to the tokenizer of server.base_model",
        )
    theirs = given[sampled_positions(turn.tokens) + 1]
    ours = np.array(turn.tokens.sampled_logprobs, dtype=np.float64)
    if not np.isfinite(theirs).all():
        raise Told("a logprob of a given token is not finite", "write train.kl=0")
    gap = float(np.abs(theirs - ours).mean())
    said = f"logprobs of given tokens differ from those of the sampling by {gap:.2g} in the mean"
    if gap > limit:
        speaker.warn(said, "train.kl would compare two scales; see docs/audit.md")
    else:
        speaker.ok(f"{said}; the server knows the stop ids")


async def parity(
    speaker: Speaker,
    service: TrainingService,
    experiment: Experiment,
    turn: Turn,
    vocab: int,
    ledger: Ledger,
    scope: Scope,
) -> None:
    """Train on a probe without taking a step, and compare the logprobs.

    Raises:
        MtrlError: a training call failed, or has an unknown outcome.
    """
    plan = TrainingPlan(experiment)
    operations = Operations(service, ledger, 1, vocab)
    await scope.borrow(operations.server_model(plan.model))
    logprobs = np.array(turn.tokens.sampled_logprobs, dtype=np.float32)
    probe = datum(turn.tokens, logprobs, np.ones_like(logprobs))
    result = await operations.forward_backward([probe], plan.loss)
    if service.capabilities.leaks_gradients:
        await operations.optim_step(replace(plan.adam(0), learning_rate=0.0, weight_decay=0.0))
        speaker.ok("its gradients were consumed by an optimizer step of learning rate 0")
    places = sampled_positions(turn.tokens)
    pair = Pair(
        places,
        np.array(turn.tokens.sampled_logprobs, dtype=np.float64),
        result.logprobs[0][places].astype(np.float64),
    )
    if not np.isfinite(pair.again).all():
        raise Told("a logprob of the trainer is not finite", "see the server's log")
    limits = plan.audit.limits
    figures = parity_figures([pair], limits.limit)
    most, mean = figures["parity_max"], figures["parity_mean"]
    said = (
        f"over {len(places)} tokens the trainer's logprobs differ from the sampler's by {most:.2g}"
        f" at most and {mean:.2g} in the mean"
    )
    cause = likely_cause([pair])
    explained = f"{said}{': ' + cause if cause else ''}"
    if limits.stops(figures):
        raise Told(explained, "a run would stop; see docs/audit.md")
    if limits.warns(figures):
        speaker.warn(explained, "see docs/audit.md")
    else:
        speaker.ok(said)
