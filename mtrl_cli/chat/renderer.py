"""Chat over a renderer of the ``renderers`` package: append-only, control tokens kept apart.

The opening of a conversation is rendered once. After that nothing is rendered again: a turn's
sampled ids stay as they are, and `bridge` asks the renderer only for the ids that follow them.
A bridge does not depend on the history before the turn, so the renderer is shown a fixed
minimal opening in its place; `startup` proves that this is true of the template, and refuses a
template for which it is not.

Words of the conversation are literal text (see `tokenizer`): they cannot write the template's
control tokens.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mtrl_cli.chat.errors import ChatConfigError
from mtrl_cli.chat.messages import literal_messages, literal_value
from mtrl_cli.chat.select import make_renderer, reason_of
from mtrl_cli.chat.tokenizer import ChatTokenizer
from mtrl_cli.chat.tools import ToolReader
from mtrl_cli.rollout.ports import (
    AssistantTurn,
    Message,
    TemplateNotAppendOnly,
    ToolCall,
    ToolSpec,
)

_REMEMBERED_PROMPTS = 128
"""The members of a group open with the same words; each prompt is rendered once."""

_BROKEN = {
    "invalid_json": "The tool call is not valid JSON",
    "unclosed_block": "The tool call has no end",
    "missing_name": "The tool call names no tool",
    "unknown_tool": "There is no tool of that name",
    "malformed_structure": "The tool call is malformed",
}


class RendererChat:
    """`mtrl_cli.rollout.ports.Chat` over one renderer.

    ``options`` are the renderer's own settings; thinking is off unless they say otherwise.
    """

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        renderer: str = "qwen3",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.name = renderer
        self._renderer = make_renderer(tokenizer, renderer, options or {})
        self._stop_ids = tuple(self._renderer.get_stop_token_ids())
        self._vocabulary = tokenizer.id_bound
        try:
            self._opening = self._assistant_opener()
        except Exception as error:
            raise ChatConfigError(
                f"renderer {renderer!r} cannot open a turn with tokenizer"
                f" {tokenizer.name_or_path!r}: {reason_of(error)}; use one such as 'qwen3'"
            ) from error
        self._parse_with = self._opening if self._opening_matters() else None
        self._before = self._shortest_before()
        self._prompts: dict[tuple[int, str], tuple[Sequence[ToolSpec], list[int]]] = {}
        self._readers: dict[int, tuple[Sequence[ToolSpec], ToolReader]] = {}

    def _assistant_opener(self) -> list[int]:
        """What stands between the last end marker of a prompt and the first sampled token."""
        ids: list[int] = list(
            self._renderer.render_ids(
                [{"role": "user", "content": "x"}], add_generation_prompt=True
            )
        )
        ends = [at for at, token in enumerate(ids) if token in self._stop_ids]
        return ids[ends[-1] + 1 :] if ends and ends[-1] + 1 < len(ids) else ids

    def _opening_matters(self) -> bool:
        """Whether a completion reads differently after this opener, as within an open thought."""
        words = self.tokenizer.encode("words")
        parse = self._renderer.parse_response
        return bool(parse(words, prompt_ids=self._opening) != parse(words))

    def _shortest_before(self) -> list[int]:
        """What stands before the turn when bridging. Renderers scan it each time, so one token
        is better than all, where it makes no difference."""
        short, words = self._opening[:1], self.tokenizer.encode("words")
        answer = [{"role": "tool", "name": "t", "tool_call_id": "c", "content": "x"}]
        for completion in ([], words, [*words, self._stop_ids[0]]):
            long = self.append(self._opening, completion, answer)
            if self.append(short, completion, answer) != long:
                return self._opening
        return short

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return self._stop_ids

    @property
    def vocabulary(self) -> int:
        return self._vocabulary

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        try:
            key = (id(tools), json.dumps(messages))
        except (TypeError, ValueError, RecursionError):
            return self._render(messages, tools)  # not plain data: `_render` judges it
        held = self._prompts.get(key)
        if held is None or held[0] is not tools:
            held = (tools, self._render(messages, tools))
            if len(self._prompts) >= _REMEMBERED_PROMPTS:
                del self._prompts[next(iter(self._prompts))]
            self._prompts[key] = held
        return list(held[1])

    def _render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        return list(
            self._renderer.render_ids(
                literal_messages(self.tokenizer, messages),
                tools=[literal_value(self.tokenizer, tool) for tool in tools] or None,
                add_generation_prompt=True,
            )
        )

    def bridge(self, completion: Sequence[int], results: Sequence[Message]) -> list[int]:
        messages = literal_messages(self.tokenizer, results)
        ids = self.append(self._before, list(completion), messages)
        if ids is None and completion and completion[-1] in self._stop_ids:
            # A completion that the template would not have written, such as one that ends within
            # a thought. What follows its end marker is still well defined.
            ids = self.append(self._before, [completion[-1]], messages)
        if ids is None:
            # An end marker in the middle, or one after which this template stops for good.
            ids = self.append(self._before, [], messages)
        if ids is None:
            raise TemplateNotAppendOnly(
                f"renderer {self.name!r} cannot continue a sampled turn by appending"
            )
        return ids

    def append(
        self, before: list[int], completion: list[int], messages: list[dict[str, Any]]
    ) -> list[int] | None:
        """What the renderer appends to ``before + completion``, None where it does not append."""
        rendered = self._renderer.bridge_to_next_turn(before, completion, messages)
        if rendered is None:
            return None
        ids, held = rendered.token_ids, len(before) + len(completion)
        if ids[: len(before)] != before or ids[len(before) : held] != completion:
            return None
        return list(ids[held:])

    # --- reading ----------------------------------------------------------------------------

    def read(self, completion: Sequence[int], tools: Sequence[ToolSpec]) -> AssistantTurn:
        reader = self._reader(tools)
        ids = list(completion)
        try:
            parsed = self._renderer.parse_response(ids, tools=tools, prompt_ids=self._parse_with)
            calls = []
            text = [parsed.reasoning_content or "", parsed.content or ""]
            for found in parsed.tool_calls:
                call = self._checked(found, reader)
                if call.error is not None:
                    text.append(found.raw)
                calls.append(call)
            return AssistantTurn("\n".join(part for part in text if part), tuple(calls))
        except Exception as error:
            # Parsers stumble over text made to break them: integers of 5,000 digits, JSON
            # nested 10,000 deep. It was an attempt at a call, and the model is told so.
            reason = f"The tool call could not be read ({type(error).__name__})"
            return AssistantTurn(self._text(ids), (reader.broken(None, reason),))

    def _checked(self, found: Any, reader: ToolReader) -> ToolCall:
        status = found.status
        if status not in ("ok", "unknown_tool"):
            name = found.name if isinstance(found.name, str) else None
            return reader.broken(name, _BROKEN.get(status, "The tool call is malformed"))
        return reader.call(found.name, found.arguments)

    def _text(self, ids: list[int]) -> str:
        while ids and ids[-1] in self._stop_ids:
            ids = ids[:-1]
        try:
            return self.tokenizer.decode(ids)
        except Exception:
            return ""  # ids that are no token of this tokenizer

    def _reader(self, tools: Sequence[ToolSpec]) -> ToolReader:
        held = self._readers.get(id(tools))
        if held is not None and held[0] is tools:
            return held[1]
        try:
            reader = ToolReader(tools)
        except ChatConfigError:
            reader = ToolReader(())  # `startup` has refused such tools at start-up
        if len(self._readers) >= 64:
            self._readers.clear()
        self._readers[id(tools)] = (tools, reader)
        return reader
