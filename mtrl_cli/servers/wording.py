"""What servers say, as one line that is safe to print.

JSON is reduced to its message, HTML to its title, a traceback to its last line; control characters
are shown instead of sent to the terminal, and a key that is repeated is masked.
"""

import html
import json
import re
import unicodedata
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

_LONGEST_LINE = 300
_READ_AT_MOST = 65_536
_PARSE_AT_MOST = 2**20
_SHORTEST_SECRET = 4

# A page may be broken or hostile: neither pattern may read a stretch of it more than a few times.
_TITLE = re.compile(r"<(title|h1)\b[^<>]{0,200}>(.{0,300}?)</\1", re.IGNORECASE | re.DOTALL)
_TAG = re.compile(r"<[^<>]*>")


def server_words(body: bytes) -> str:
    """What a reply's body says, as one short line."""
    text = body[:_READ_AT_MOST].decode("utf-8", "replace").strip()
    if not text:
        return ""
    if text[0] in "{[" and len(body) <= _PARSE_AT_MOST:
        try:
            return one_line(_message(json.loads(body)))
        except (ValueError, RecursionError):
            return one_line(text)
    if text[0] == "<":
        title = _TITLE.search(text)
        return one_line(html.unescape(title[2] if title else _TAG.sub(" ", text)))
    return one_line(text)


def _message(value: Any) -> str:
    """The message inside an error body: FastAPI's ``detail``, or ``error``, or ``message``."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "; ".join(_message(item) for item in value[:3])
    if isinstance(value, Mapping):
        if "msg" in value:
            loc = value.get("loc")
            parts = loc if isinstance(loc, list) else []
            where = ".".join(str(part) for part in parts if part != "body")
            return f"{where}: {value['msg']}" if where else str(value["msg"])
        for key in ("detail", "error", "message"):
            if value.get(key):
                return _message(value[key])
    return json.dumps(value)[:_LONGEST_LINE]


def one_line(text: str, longest: int = _LONGEST_LINE) -> str:
    """``text`` as one line that is safe to print: its last line where it is a traceback."""
    lines = [line.strip() for line in text[:_READ_AT_MOST].splitlines() if line.strip()]
    if len(lines) > 1 and any(line.startswith("Traceback (most recent") for line in lines):
        lines = lines[-1:]
    line = "".join(_visible(char) for char in " ".join(lines))
    line = re.sub(r"\s+", " ", line).strip()
    return line if len(line) <= longest else line[: longest - 1].rstrip() + "…"


def picture(value: Any, longest: int = 80) -> str:
    """A server's JSON value, or bytes, as one short line; of a large or deep one the beginning."""
    if isinstance(value, bytes):
        return one_line(value[: 4 * longest].decode("utf-8", "replace"), longest)
    text = ""
    for piece in json.JSONEncoder(ensure_ascii=False, default=repr).iterencode(value):
        text += piece  # lazily: all of it may be 60 MB, or nested deeper than Python goes
        if len(text) > longest:
            break
    return one_line(text, longest)


def _visible(char: str) -> str:
    """Control and direction characters as their code, so that no terminal obeys them."""
    if char == "\t" or char.isprintable():
        return char
    if unicodedata.category(char).startswith("Z"):
        return " "
    return f"\\x{ord(char):02x}" if ord(char) < 256 else f"\\u{ord(char):04x}"


def without_secret(text: str, secret: str | None) -> str:
    """``text`` with the key masked, wherever a server repeated it: plain, as JSON, HTML or a URL
    write it, and in part, where the text was cut short within it."""
    if not secret or len(secret) < _SHORTEST_SECRET:
        return text
    for form in {secret, json.dumps(secret)[1:-1], html.escape(secret), quote(secret, safe="")}:
        text = text.replace(form, "<key>")
    if "…" in text:
        for length in range(len(secret) - 1, _SHORTEST_SECRET - 1, -1):
            text = text.replace(f"{secret[:length]}…", "<key>…")
    return text
