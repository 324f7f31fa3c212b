"""Scripted episodes as token streams: each turn a fair coin decides between hit and stand."""

import random
from dataclasses import dataclass

import numpy as np
from renderers.qwen3 import Qwen3Renderer

from mtrl_cli.chat.tokenizer import ChatTokenizer
from mtrl_cli.local.engine.types import Array
from mtrl_cli.local.warmstart.vocabulary import call_text
from mtrl_cli.tasks.blackjack import text
from mtrl_cli.tasks.blackjack.game import Game

RECALLED = 8
"""How many of an observation's last tokens the recall heads predict."""


@dataclass(frozen=True)
class Episode:
    """A stream of ids, what the assistant said of it, and where it decided upon what."""

    tokens: Array  # int [T]
    sampled: Array  # bool [T]: the assistant's tokens
    decisions: Array  # int [turns]: positions whose next token is the action
    observed: Array  # int [turns, RECALLED]: the last tokens of the observation before each


class Scripter:
    """Writes episodes through the client's template."""

    def __init__(self, tokenizer: ChatTokenizer, template: Qwen3Renderer) -> None:
        self._template, self._encode = template, tokenizer.encode
        ids = tokenizer.convert_tokens_to_ids
        self._call = {
            action: [
                ids("<tool_call>"), *tokenizer.encode(call_text(action)),
                ids("</tool_call>"), ids("<|im_end|>"),
            ]
            for action in ("hit", "stand")
        }  # fmt: skip
        hit, stand = self._call.values()
        self._action_at = next(n for n, (a, b) in enumerate(zip(hit, stand, strict=True)) if a != b)

    def play(self, rng: random.Random) -> Episode:
        """One episode; ends with the assistant's last turn."""
        game = Game.deal(rng.randrange(2**32))
        messages = [
            {"role": "system", "content": text.SYSTEM_PROMPT},
            {"role": "user", "content": text.hand(game)},
        ]
        tokens = self._template.render_ids(
            messages, tools=list(text.TOOLS), add_generation_prompt=True
        )
        sampled = [False] * len(tokens)
        decisions, observed = [], []
        while True:
            observed.append(self._encode(text.hand(game))[-RECALLED:])
            action = rng.choice(("hit", "stand"))
            completion = self._call[action]
            decisions.append(len(tokens) + self._action_at - 1)
            sampled += [True] * len(completion)
            game.hit() if action == "hit" else game.stand()
            if game.over:
                tokens = [*tokens, *completion]
                break
            reply = [{"role": "tool", "content": text.hand(game)}]
            bridged = self._template.bridge_to_next_turn(tokens, completion, reply)
            assert bridged is not None
            tokens = list(bridged.token_ids)
            sampled += [False] * (len(tokens) - len(sampled))
        return Episode(
            np.array(tokens, np.int32), np.array(sampled), np.array(decisions), np.array(observed)
        )
