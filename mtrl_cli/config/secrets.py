"""Secrets in a configuration: which keys hold them, and text without them.

A key is a secret by its name. Its value belongs in the environment and is named by
interpolation (``${oc.env:NAME}``); an unresolved configuration then holds no secret at all. A
literal is masked where the configuration is saved or shown. `Redactor` takes known values out
of any other text, wherever an interpolation copied them. A user name and password inside an
address are a secret wherever they stand.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

MASK = "***"

_SECRET_NAME = re.compile(r"(?:^|_)(?:api_?key|token|secret|passw(?:or)?d|headers)$", re.IGNORECASE)
_SECRET_ENTRY = re.compile(r"(?:api_?key|token|secret|passw(?:or)?d)['\"]?\s*:", re.IGNORECASE)
_ENV = re.compile(r"\$\{\s*oc\.env\s*:\s*['\"]?([A-Za-z_]\w*)['\"]?\s*(,)?")
_ENV_LITERAL_DEFAULT = re.compile(
    r"(\$\{\s*oc\.env\s*:\s*['\"]?[A-Za-z_]\w*['\"]?\s*,)\s*(?!null\s*\}|\$\{)[^}]+(?=\})"
)
_URL_USER = re.compile(r"(://)[^\s/@'\"]+@")
_BARE_USER = re.compile(r"[^\s/@:='\"]+:([^\s/@'\"]+)@")
"""In an address whose scheme was forgotten."""
_PLAIN = re.compile(r"[-+.\deE]*|true|false|null|none", re.IGNORECASE)
_SHORTEST = 4
"""Shorter values are not taken out of text: they would riddle it and hide nothing."""


@dataclass(frozen=True, slots=True)
class SecretKey:
    """One secret of an experiment, without its value."""

    key: str
    variable: str | None
    """The environment variable that it comes from; None for a literal."""
    present: bool
    required: bool


def is_secret(key: str) -> bool:
    """Whether a key, dotted or not, holds a secret by its name or by that of what it is in."""
    return any(_SECRET_NAME.search(part) for part in key.split("."))


def mentions_secret(text: str) -> bool:
    """Whether a written mapping (``{api_key: …}``) has a secret among its keys."""
    return bool(_SECRET_ENTRY.search(text))


def masked_value(value: str) -> str:
    """A secret's text as it may be shown: where it comes from stays, a literal does not."""
    return _ENV_LITERAL_DEFAULT.sub(rf"\1{MASK}", value) if _interpolated(value) else MASK


def without_user(text: str) -> str:
    """``text`` without the user names and passwords of the addresses in it."""
    return _BARE_USER.sub(f"{MASK}@", _URL_USER.sub(rf"\1{MASK}@", text))


def leaves(node: Any, prefix: str = "", secret: bool = False) -> Iterator[tuple[str, Any, bool]]:
    """Every value of an unresolved container: its key, itself, whether it is a secret."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            dotted = f"{prefix}.{key}" if prefix else str(key)
            yield from leaves(value, dotted, secret or is_secret(str(key)))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from leaves(value, f"{prefix}[{index}]", secret)
    else:
        yield prefix, node, secret


def secret_keys(container: Any) -> list[SecretKey]:
    """The secrets of an unresolved container, and which of them are set."""
    found = []
    for key, value, secret in leaves(container):
        if not secret:
            continue
        if match := _ENV.search(str(value)):
            variable = match.group(1)
            found.append(SecretKey(key, variable, variable in os.environ, not match.group(2)))
        elif value is not None:
            found.append(SecretKey(key, None, True, True))
    return found


def masked(container: Any) -> Any:
    """A copy of an unresolved container in which no literal secret stands."""
    literals = Redactor(_literals(container))

    def copy(node: Any, secret: bool) -> Any:
        if isinstance(node, Mapping):
            return {key: copy(value, secret or is_secret(str(key))) for key, value in node.items()}
        if isinstance(node, list):
            return [copy(value, secret) for value in node]
        if secret and node is not None and node != "???":
            return masked_value(str(node))
        return literals(node) if isinstance(node, str) else node

    return copy(container, False)


@dataclass(frozen=True)
class Redactor:
    """Takes known secret values out of text."""

    values: frozenset[str] = field(default=frozenset(), repr=False)

    def __call__(self, text: str) -> str:
        for value in sorted(self.values, key=len, reverse=True):
            text = text.replace(value, MASK)
        return _URL_USER.sub(rf"\1{MASK}@", text)


def redactor(container: Any, resolved: Iterable[object] = ()) -> Redactor:
    """For an unresolved container: its literal secrets, and what it takes from the environment.

    Args:
        resolved: what its secrets come to, however their interpolations are written.
    """
    variables = {
        match.group(1)
        for _, value, _ in leaves(container)
        if isinstance(value, str)
        for match in _ENV.finditer(value)
    }
    values = {os.environ[name] for name in variables if name in os.environ}
    values.update(str(value) for value in resolved)
    taken = {value for value in values if len(value) >= _SHORTEST and not _PLAIN.fullmatch(value)}
    return Redactor(_literals(container) | taken)


def _literals(container: Any) -> frozenset[str]:
    return frozenset(
        str(value)
        for _, value, secret in leaves(container)
        if secret and not _interpolated(value) and len(str(value)) >= _SHORTEST
        if value is not None and value != MASK
    ) | frozenset(
        match[1]
        for key, value, _ in leaves(container)
        if key.endswith("url") and isinstance(value, str)
        if (match := _BARE_USER.match(value)) and match[1] != MASK
    )


def _interpolated(value: Any) -> bool:
    return isinstance(value, str) and "${" in value
