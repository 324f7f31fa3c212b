"""The warm start: learn the format and to keep the observation in mind, but no strategy.

Cross-entropy on scripted episodes whose actions are coin flips. Alone that teaches the model to
ignore the cards, and policy gradient then finds nothing to build on. So throw-away *recall
heads*, one matrix for each of the last 8 tokens of the observation, read the hidden state at the
token before the action and must name that observation token (through the tied head). They know
nothing of the game and are dropped afterwards; what stays is a state that holds the cards.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mtrl_cli.local.engine import transformer
from mtrl_cli.local.engine.batches import common_prefix
from mtrl_cli.local.engine.ops import log_normalizer
from mtrl_cli.local.engine.types import Array, Shape
from mtrl_cli.local.engine.weights import initial
from mtrl_cli.local.warmstart.episodes import RECALLED, Episode, Scripter
from mtrl_cli.local.warmstart.muon import Muon


@dataclass(frozen=True)
class Recipe:
    """The settings; the defaults made the shipped weights."""

    steps: int = 900
    episodes: int = 16
    muon: float = 2e-2
    adam: float = 1e-2
    warmup: int = 20
    other_weight: float = 0.2
    """Loss weight of tokens that are not the assistant's."""
    recall_weight: float = 0.2


def run(
    shape: Shape,
    scripter: Scripter,
    recipe: Recipe,
    seed: int,
    report: Callable[[int, float, float], None],
) -> dict[str, Array]:
    """Train from random weights; ``report`` gets step, mean token loss and mean recall loss."""
    rng = random.Random(seed)
    weights = initial(shape, seed)
    noise = np.random.default_rng(seed + 1)
    heads = noise.standard_normal((RECALLED, shape.width, shape.width)).astype(np.float32)
    heads *= shape.width**-0.5
    matrices = {name: value for name, value in weights.items() if name != "embed"}
    muon = Muon(matrices)
    adam = _Adam({"embed": weights["embed"], "recall": heads})
    for step in range(recipe.steps):
        episodes = [scripter.play(rng) for _ in range(recipe.episodes)]
        gradients, token_loss, recall_loss = _gradients(shape, weights, heads, episodes, recipe)
        pace = min(1.0, (step + 1) / recipe.warmup)
        pace *= 0.5 * (1 + np.cos(np.pi * step / recipe.steps))
        muon.step(gradients, recipe.muon * pace)
        adam.step(gradients, recipe.adam * pace)
        report(step, token_loss, recall_loss)
    return weights


class _Adam:
    """Plain Adam over arrays updated in place."""

    def __init__(self, values: dict[str, Array]) -> None:
        self._values, self._steps = values, 0
        self._m = {name: np.zeros_like(value) for name, value in values.items()}
        self._v = {name: np.zeros_like(value) for name, value in values.items()}

    def step(self, gradients: dict[str, Array], learning_rate: float) -> None:
        self._steps += 1
        for name, value in self._values.items():
            m, v, g = self._m[name], self._v[name], gradients[name]
            m += 0.1 * (g - m)
            v += 0.05 * (g * g - v)
            m_hat, v_hat = m / (1 - 0.9**self._steps), v / (1 - 0.95**self._steps)
            value -= learning_rate * m_hat / (np.sqrt(v_hat) + 1e-8)


def _gradients(
    shape: Shape,
    weights: dict[str, Array],
    heads: Array,
    episodes: list[Episode],
    recipe: Recipe,
) -> tuple[dict[str, Array], float, float]:
    """Gradients of weights and recall heads (``recall``), and the two mean losses."""
    start = common_prefix([episode.tokens for episode in episodes])
    root = transformer.forward(shape, weights, episodes[0].tokens[None, :start])
    prefix = root.as_prefix()
    length = max(len(episode.tokens) for episode in episodes) - start
    tokens = np.zeros((len(episodes), length), np.intp)
    pace = np.zeros((len(episodes), length), np.float32)
    decisions, observed = [], []
    for row, episode in enumerate(episodes):
        own = len(episode.tokens) - start
        tokens[row, :own] = episode.tokens[start:]
        pace[row, : own - 1] = np.where(episode.sampled[start + 1 :], 1, recipe.other_weight)
        decisions.append(row * length + episode.decisions - start)
        observed.append(episode.observed)
    tape = transformer.forward(shape, weights, tokens, prefix)
    gradients = {name: np.zeros_like(value) for name, value in weights.items()}

    targets = np.roll(tokens, -1, 1).ravel()
    flat = pace.ravel() / pace.sum()
    token_loss, grad = _cross_entropy(weights["embed"], tape.output, targets, flat, gradients)
    # The prefix predicts itself, too: all its tokens but the last have a known successor.
    root_pace = np.full(start, recipe.other_weight * len(episodes), np.float32) / pace.sum()
    root_pace[-1] = 0
    root_targets = np.roll(episodes[0].tokens[:start], -1)
    root_loss, root_grad = _cross_entropy(
        weights["embed"], root.output, root_targets, root_pace, gradients
    )

    at, seen = np.concatenate(decisions), np.concatenate(observed)
    held = tape.output[at]
    even = np.full(len(at), recipe.recall_weight / len(at), np.float32)
    gradients["recall"] = np.zeros_like(heads)
    recall_loss = 0.0
    for place in range(RECALLED):
        loss, dread = _cross_entropy(
            weights["embed"], held @ heads[place], seen[:, place], even, gradients
        )
        recall_loss += loss / RECALLED / recipe.recall_weight
        gradients["recall"][place] = held.T @ dread
        grad[at] += dread @ heads[place].T

    into = transformer.backward(shape, weights, tape, grad, gradients, prefix)
    transformer.backward(shape, weights, root, root_grad, gradients, continued=into)
    return gradients, token_loss + root_loss, recall_loss


def _cross_entropy(
    embed: Array, output: Array, targets: Array, pace: Array, gradients: dict[str, Array]
) -> tuple[float, Array]:
    """Weighted loss and d loss / d output; adds the head's share of the ``embed`` gradient."""
    logits = output @ embed.T
    logits -= log_normalizer(logits)
    every = np.arange(len(targets))
    loss = -float(pace @ logits[every, targets])
    np.exp(logits, out=logits)
    logits[every, targets] -= 1
    logits *= pace[:, None]
    gradients["embed"] += logits.T @ output
    return loss, logits @ embed
