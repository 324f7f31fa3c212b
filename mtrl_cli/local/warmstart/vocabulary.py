"""The tokenizer: byte-level BPE trained on the chat text that the model will read.

Byte level: every text can be encoded, at worst byte by byte. The pre-tokenizer keeps what the
model must tell apart (numbers, card ranks, hit and stand, soft and hard, line breaks) as pieces
of their own and lets everything between them merge across spaces (as in SuperBPE, Liu et al.
2025), for the text is nearly always the same: Qwen's tool preamble shrinks to some 40 tokens, a
tool call to 8, and the whole course of training with them.

Qwen's markers are added to the vocabulary after training, with Qwen's flags: the three that
delimit turns are special, those inside a turn are not.
"""

import random
from collections.abc import Iterator
from pathlib import Path

from renderers.configs import Qwen3RendererConfig
from renderers.qwen3 import Qwen3Renderer
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from mtrl_cli.chat.tokenizer import ChatTokenizer
from mtrl_cli.tasks.blackjack import text
from mtrl_cli.tasks.blackjack.game import Game

SIZE = 640
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
IN_TURN = (
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
    *("<think>", "</think>"),
)
PIECES = r" \d+| [AJQK](?![a-z])|\d+|hit|stand|soft|hard|\n"
FILE = "tokenizer.json"


def call_text(action: str) -> str:
    """What stands between ``<tool_call>`` and ``</tool_call>``."""
    return f'\n{{"name": "play", "arguments": {{"action": "{action}"}}}}\n'


def train(games: int = 400, seed: int = 0) -> Tokenizer:
    """Train the tokenizer on ``games`` scripted games; the same seed gives the same file."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE - len(SPECIAL) - len(IN_TURN),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(games, random.Random(seed)), trainer)
    _add_markers(tokenizer)
    return tokenizer


def save(tokenizer: Tokenizer, directory: Path) -> None:
    """Write tokenizer.json."""
    tokenizer.save(str(directory / FILE), pretty=False)


def renderer(tokenizer: Tokenizer) -> tuple[ChatTokenizer, Qwen3Renderer]:
    """The tokenizer and the template exactly as the training client uses them."""
    chat = ChatTokenizer(tokenizer, "mtrl-tiny")
    return chat, Qwen3Renderer(chat, Qwen3RendererConfig(enable_thinking=False))


def _texts(games: int, rng: random.Random) -> Iterator[str]:
    """The pieces of text that the template encodes one by one, and the numbers."""
    preamble = _preamble()
    numbers = "".join(f" {number}" for number in range(2, 32))
    for index in range(games):
        if index % 8 == 0:
            yield from (preamble, "assistant\n", "<think>\n\n</think>\n\n", numbers)
        game = Game.deal(rng.randrange(2**32))
        yield "user\n" + text.hand(game)
        while not game.over:
            action = rng.choice(("hit", "stand"))
            yield call_text(action)
            game.hit() if action == "hit" else game.stand()
            yield f"\n{text.result(game) if game.over else text.hand(game)}\n"


def _preamble() -> str:
    """The system message as the template writes it, read back from a byte-by-byte rendering."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytewise = Tokenizer(models.BPE(vocab={c: n for n, c in enumerate(alphabet)}, merges=[]))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bytewise.decoder = decoders.ByteLevel()
    _add_markers(bytewise)
    chat, template = renderer(bytewise)
    messages = [{"role": "system", "content": text.SYSTEM_PROMPT}]
    ids = template.render_ids(messages, tools=list(text.TOOLS))
    return chat.decode(ids, skip_special_tokens=True)


def _add_markers(tokenizer: Tokenizer) -> None:
    tokenizer.add_special_tokens([AddedToken(marker, normalized=False) for marker in SPECIAL])
    tokenizer.add_tokens(
        [AddedToken(marker, special=False, normalized=False) for marker in IN_TURN]
    )
