"""Tokenizers for the chat tests: the packaged one, and one made here in Qwen's form."""

from functools import cache

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from mtrl_cli.chat.renderer import RendererChat
from mtrl_cli.chat.tokenizer import ChatTokenizer, load_tokenizer

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKERS = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
CONTROLS = SPECIALS + MARKERS

PLAY = {
    "type": "function",
    "function": {
        "name": "play",
        "description": "Take a card or stop.",
        "parameters": {
            "type": "object",
            "properties": {"action": {"type": "string", "enum": ["hit", "stand"]}},
            "required": ["action"],
            "additionalProperties": False,
        },
    },
}
BET = {
    "type": "function",
    "function": {
        "name": "bet",
        "parameters": {
            "type": "object",
            "properties": {
                "chips": {"type": "integer", "minimum": 1},
                "on": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["chips"],
        },
    },
}


@cache
def qwen_like(normalizer: str | None = None) -> ChatTokenizer:
    """Byte-level BPE with Qwen's control tokens; ``hello`` is one token."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    if normalizer is not None:
        backend.normalizer = getattr(normalizers, normalizer)()
    backend.train_from_iterator(
        ["system user assistant hello play action hit stand Cards Total Dealer"] * 4,
        trainers.BpeTrainer(
            vocab_size=400,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=list(SPECIALS),
            show_progress=False,
        ),
    )
    backend.add_tokens([AddedToken(marker, normalized=False) for marker in MARKERS])
    return ChatTokenizer(backend, "qwen-like")


@cache
def packaged() -> ChatTokenizer:
    """Its own vocabulary can build ``<tool_call>`` from letters, which makes it a hard case."""
    return load_tokenizer("mtrl-tiny")


@cache
def chat(which: str = "qwen-like") -> RendererChat:
    return RendererChat(packaged() if which == "packaged" else qwen_like())


def call(text: str, which: str = "qwen-like", end: str = "<|im_end|>") -> list[int]:
    """A completion that calls a tool with ``text`` as the call's body."""
    return chat(which).tokenizer.encode(f"<tool_call>\n{text}\n</tool_call>{end}")
