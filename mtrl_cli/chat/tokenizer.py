"""Text to ids, with control tokens that only the template can write.

A tokenizer turns the text of a marker such as ``<|im_end|>`` or ``<tool_call>`` into one
control token wherever it stands. The template needs that; an observation or a user's words
must not get it. So untrusted text is passed through `ChatTokenizer.literal` before it enters
the renderer: it breaks every possible marker with a joint, a Unicode noncharacter. `encode`
finds the template's markers while the joints are in place, then removes the joints and encodes
what lies between the markers with a twin of the tokenizer that has no control tokens at all.
The text that the model reads is unchanged; only its chance of being a marker is gone.
"""

import json
import re
from collections.abc import Iterable
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtrl_cli.chat.errors import ChatConfigError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

JOINT = "\ufdd0"
_JOINT_IN_JSON = "\\ufdd0"
"""The joint as some templates' ``json.dumps`` writes it."""

_ASSETS = Path(__file__).parents[1] / "assets"
_END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "</s>", "<|endoftext|>")
_CACHED_TEXT = 32
"""Texts up to this length are remembered: a template's own pieces recur every turn."""


def load_tokenizer(name_or_path: str) -> "ChatTokenizer":
    """A packaged tokenizer by name, or one from a ``tokenizer.json`` or its folder.

    Raises:
        ChatConfigError: there is no such tokenizer, or the file is not one.
    """
    from tokenizers import Tokenizer

    path = tokenizer_file(name_or_path)
    try:
        backend = Tokenizer.from_file(str(path))
    except Exception as error:
        raise ChatConfigError(f"tokenizer {path}: not a tokenizer.json: {error}") from error
    return ChatTokenizer(backend, name_or_path, _read_config(path.parent))


def tokenizer_file(name_or_path: str) -> Path:
    """The file that is meant, which is there.

    Raises:
        ChatConfigError: there is none.
    """
    packaged = _ASSETS / name_or_path / "tokenizer.json"
    path = Path(name_or_path).expanduser()
    if re.fullmatch(r"[\w.-]+", name_or_path) and packaged.is_file():
        path = packaged
    elif path.is_dir():
        path = path / "tokenizer.json"
    if not path.is_file():
        have = ", ".join(sorted(p.parent.name for p in _ASSETS.glob("*/tokenizer.json")))
        raise ChatConfigError(
            f"tokenizer {name_or_path!r}: no such file, and no packaged tokenizer of that name"
            f" ({have or 'none'}); write the path of a tokenizer.json"
        )
    return path


def _read_config(folder: Path) -> dict[str, Any]:
    """What a tokenizer.json leaves out: end token and chat template, where files give them."""
    config: dict[str, Any] = {}
    file = folder / "tokenizer_config.json"
    if file.is_file():
        loaded = json.loads(file.read_text(encoding="utf-8"))
        config = loaded if isinstance(loaded, dict) else {}
    template = folder / "chat_template.jinja"
    if "chat_template" not in config and template.is_file():
        config["chat_template"] = template.read_text(encoding="utf-8")
    return config


class ChatTokenizer:
    """A `tokenizers.Tokenizer` in the form that the ``renderers`` package expects."""

    def __init__(
        self, backend: "Tokenizer", name_or_path: str, config: dict[str, Any] | None = None
    ) -> None:
        from tokenizers import Tokenizer

        self.name_or_path = name_or_path
        self.backend = backend
        self.chat_template = (config or {}).get("chat_template")
        added = backend.get_added_tokens_decoder()
        self._added = {token.content: token_id for token_id, token in added.items()}
        # Some tokenizers add tokens for runs of spaces; these control nothing.
        control = {i: t for i, t in added.items() if t.special or not t.content.isspace()}
        self.control_ids = frozenset(control)
        """Ids that only the template and the model may write."""
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self.unk_token_id: int | None = None
        self.eos_token_id = self._end_of_turn((config or {}).get("eos_token"))

        stripped = json.loads(backend.to_str())
        stripped["added_tokens"] = []
        stripped["post_processor"] = None
        self._plain = Tokenizer.from_str(json.dumps(stripped))
        self._normalizes = backend.normalizer is not None
        # A token that swallows the whitespace around it does so here too.
        alternatives = [
            (r"\s*" if token.lstrip else "")
            + re.escape(token.content)
            + (r"\s*" if token.rstrip else "")
            for token in sorted(added.values(), key=lambda token: -len(token.content))
        ]
        self._marker = re.compile("|".join(alternatives)) if alternatives else re.compile(r"(?!)")
        starts = "".join(sorted({token.content[0] for token in control.values()}))
        self._start = re.compile(f"[{re.escape(starts)}]") if starts else re.compile(r"(?!)")
        special = [re.escape(t.content) for t in added.values() if t.special]
        self._special_start = re.compile(f"(?={'|'.join(special)})." if special else r"(?!)", re.S)
        self._remembered = lru_cache(maxsize=1024)(self._encode)

    # --- untrusted text ---------------------------------------------------------------------

    def literal(self, text: str, *, author: bool = False) -> str:
        """``text`` with joints, so that no marker in it becomes a control token.

        ``author`` is for an assistant's words written by the task's author: markers inside a
        turn (think, tool calls) keep their meaning, those that delimit turns do not.
        """
        if JOINT in text:
            text = text.replace(JOINT, "\ufffd")  # not a character: nobody can mean it
        if not text.isascii():
            text = text.encode("utf-8", "replace").decode("utf-8")  # lone surrogates
        if author:
            return self._special_start.sub(lambda found: found.group() + JOINT, text)
        jointed = self._start.sub(lambda found: found.group() + JOINT, text)
        if self._normalizes and jointed and JOINT not in jointed and not text.isascii():
            # A normalizer could make a marker of other characters, after the joints are set.
            # One joint anywhere sends the text to the twin that knows no markers.
            at = len(jointed) - len(jointed.lstrip())
            jointed = jointed[: at + 1] + JOINT + jointed[at + 1 :]
        return jointed

    # --- what renderers use -----------------------------------------------------------------

    def encode(self, text: str, add_special_tokens: bool = False, **_: Any) -> list[int]:
        if len(text) <= _CACHED_TEXT:
            return list(self._remembered(text))
        return list(self._encode(text))

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **_: Any) -> str:
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        return self.backend.decode(ids, skip_special_tokens=skip_special_tokens)

    def convert_tokens_to_ids(self, tokens: str | list[str]) -> Any:
        if isinstance(tokens, str):
            return self.backend.token_to_id(tokens)
        return [self.backend.token_to_id(token) for token in tokens]

    def convert_ids_to_tokens(self, ids: int | Iterable[int]) -> Any:
        if isinstance(ids, int):
            return self.backend.id_to_token(ids)
        return [self.backend.id_to_token(token_id) for token_id in ids]

    def get_vocab(self) -> dict[str, int]:
        return self.backend.get_vocab(with_added_tokens=True)

    def __len__(self) -> int:
        return self.backend.get_vocab_size(with_added_tokens=True)

    @cached_property
    def id_bound(self) -> int:
        """All ids are below it. More than ``len`` where ids have gaps, as tiktoken's do."""
        return max(self.get_vocab().values(), default=-1) + 1

    # --- encoding ---------------------------------------------------------------------------

    def _encode(self, text: str) -> tuple[int, ...]:
        if JOINT not in text and _JOINT_IN_JSON not in text:
            return tuple(self.backend.encode(text, add_special_tokens=False).ids)
        ids: list[int] = []
        done = 0
        for found in self._marker.finditer(text):
            ids.extend(self._encode_plain(text[done : found.start()]))
            marker = found.group()
            ids.append(self._added[marker if marker in self._added else marker.strip()])
            done = found.end()
        ids.extend(self._encode_plain(text[done:]))
        return tuple(ids)

    def _encode_plain(self, text: str) -> list[int]:
        """The ids of ``text``, joints removed; never a control token."""
        text = text.replace(JOINT, "").replace(_JOINT_IN_JSON, "")
        encoding = self._plain.encode(text, add_special_tokens=False)
        if self.control_ids.isdisjoint(encoding.ids):
            return encoding.ids
        # The model's own vocabulary can build a control token; such a token goes in pieces.
        ids: list[int] = []
        for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if token not in self.control_ids:
                ids.append(token)
                continue
            for character in text[start:end]:
                pieces = self._plain.encode(character, add_special_tokens=False).ids
                ids.extend(piece for piece in pieces if piece not in self.control_ids)
        return ids

    def _end_of_turn(self, configured: Any) -> int | None:
        if isinstance(configured, dict):
            configured = configured.get("content")
        for token in (configured, *_END_OF_TURN):
            if isinstance(token, str) and token in self._added:
                return self._added[token]
        return None
