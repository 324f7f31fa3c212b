"""The words of a conversation, made literal before a renderer sees them.

Text only: anything else in a message is refused by name. What the task's author, a user, a tool
or an environment wrote cannot act as a control token (see `tokenizer`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from mtrl_cli.chat.tokenizer import ChatTokenizer
from mtrl_cli.rollout.ports import Message, UnsupportedContent

_TEXT_PARTS = ("text", "input_text", "output_text")


def literal_messages(tokenizer: ChatTokenizer, messages: Sequence[Message]) -> list[dict[str, Any]]:
    return [_literal_message(tokenizer, index, message) for index, message in enumerate(messages)]


def _literal_message(tokenizer: ChatTokenizer, index: int, message: Message) -> dict[str, Any]:
    literal = dict(message)
    role = message.get("role")
    author = role == "assistant"
    text = _text_of(index, role, message.get("content"))
    literal["content"] = tokenizer.literal(text, author=author)
    for key, value in message.items():
        # A model chose the name that a tool's answer repeats; nothing here is beyond doubt.
        if key not in ("role", "content"):
            literal[key] = literal_value(tokenizer, value)
    return literal


def literal_value(tokenizer: ChatTokenizer, value: Any) -> Any:
    if isinstance(value, str):
        return tokenizer.literal(value)
    if isinstance(value, Mapping):
        return {literal_value(tokenizer, k): literal_value(tokenizer, v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [literal_value(tokenizer, item) for item in value]
    return value


def _text_of(index: int, role: Any, content: Any) -> str:
    """The text of a message's content.

    Raises:
        UnsupportedContent: a part is an image, audio, video or anything else but text.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list | tuple):
        parts = []
        for part in content:
            kind = part.get("type", "text") if isinstance(part, Mapping) else "text"
            text = part.get("text") if isinstance(part, Mapping) else part
            if kind not in _TEXT_PARTS or not isinstance(text, str):
                raise UnsupportedContent(
                    f"message {index} ({role}) holds {kind!r}; mtrl is text only:"
                    " leave it out or describe it in words"
                )
            parts.append(text)
        return "".join(parts)
    raise UnsupportedContent(
        f"message {index} ({role}) holds {type(content).__name__} as its content;"
        " mtrl is text only: write a string"
    )
