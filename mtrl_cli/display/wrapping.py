"""Prose that is broken between words, for a terminal that is narrower than it.

What one copies is not broken by us: a terminal that breaks a long line itself still copies it as
one. So commands in a sentence stay whole, and so does every `Fact` that is one.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

LABEL = 11
"""Columns of a fact's label."""

HANGING = 4
"""Columns by which the rest of a sentence is indented."""

_WORD = re.compile(r" *[^ ]+")
_COMMAND = re.compile(
    r"\bmtrl [a-z]+(?: last\b| [^ ]*[-/@=][^ ]*)*"
    r"|\bpip (?:un)?install(?: -[^ ]+)* [^ ]+"
    r"|\be2b sandbox [a-z]+(?: [^ ]*[0-9][^ ]*)?"
    r"|\bkill -9 [0-9]+"
    r"|\bexport [^ ]+=[^ ]*"
)
_GLUE = "\u00a0"
"""A space at which a line is not broken."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A label, and what is said under it."""

    label: str
    text: str
    copied: bool = False
    """A command, a path or a name, which is copied and so never broken."""


def laid_out(
    facts: Iterable[Fact],
    width: int | None,
    redact: Callable[[str], str] = str,
    *,
    below_error: bool = False,
) -> Iterator[str]:
    """The lines of ``facts``, below each other; in a ``width``, prose is broken. Secrets are taken
    out before, as a break could hide one. ``below_error`` aligns the labels with that of an
    error."""
    for fact in facts:
        label = f"{fact.label and fact.label + ':':>{LABEL}} " if below_error else fact.label
        line = redact(f"{label:<{LABEL}}{fact.text}")
        yield from [line] if fact.copied else wrapped(line, width, max(LABEL, len(label)))


def wrapped(text: str, width: int | None, indent: int = 0) -> list[str]:
    """``text`` in lines of at most ``width`` columns, all but the first one indented.

    Lines are broken at spaces only: a longer word stands alone and whole.
    """
    if width is None or cells(text) <= width:
        return [text.replace(_GLUE, " ")]
    hanging = " " * min(indent, width // 3)
    lines = [""]
    for word in _WORD.findall(_COMMAND.sub(lambda found: glued(found.group()), text)):
        longer = lines[-1] + word
        if lines[-1].strip() and cells(longer) > width:
            lines.append(hanging + word.lstrip(" "))
        else:
            lines[-1] = longer
    return [line.replace(_GLUE, " ") for line in lines]


def glued(text: str) -> str:
    """``text`` as one word."""
    return text.replace(" ", _GLUE)


def cells(text: str) -> int:
    """The columns that ``text`` takes: two for a wide character, none for a combining one."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(one) else 1 + (unicodedata.east_asian_width(one) in "WF")
        for one in text
    )
