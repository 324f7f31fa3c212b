"""Prose that is broken between words, for a terminal that is narrower than it.

What one copies is not broken like prose: commands in a sentence stay whole, and so do paths and
names, as a terminal that breaks a long line itself still copies it as one. A `Fact` that is a
command goes on in the next line as a shell reads it, behind a backslash.
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
    r"|\bpython -m pip (?:un)?install(?: -[^ ]+)* [^ ]+"
    r"|\be2b sandbox [a-z]+(?: [^ ]*[0-9][^ ]*)?"
    r"|\bkill -9 [0-9]+"
    r"|\bexport [^ ]+=[^ ]*"
)
_ARGUMENT = re.compile(r"""(?:[^\s'"\\]|\\.|'[^']*'|"(?:[^"\\]|\\.)*")+""")
"""An argument as a shell reads it, quotes and all."""

_ON = " \\"
"""What a line of a command ends with that goes on in the next one."""

_GLUE = "\u00a0"
"""A space at which a line is not broken."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A label, and what is said under it."""

    label: str
    text: str
    copied: bool = False
    """A command, a path or a name, which is copied and so not broken like prose."""


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
        indent = max(LABEL, len(label))
        if not fact.copied:
            yield from wrapped(line, width, indent)
        elif fact.text.startswith("mtrl "):
            yield from continued(line[indent:], line[:indent], width)
        else:
            yield line


def continued(command: str, label: str, width: int | None) -> Iterator[str]:
    """The lines of ``command``, behind ``label`` and below it, that a shell reads as one command:
    broken between arguments, so that each line is at most ``width`` wide, if its one argument
    is. Where that needs it, they are less indented than the label is wide."""
    line, found = label + command, _ARGUMENT.findall(command)
    if width is None or cells(line) <= width or " ".join(found) != command:
        yield line
        return
    line, arguments = label + found[0], found[1:]
    spare = width - len(_ON) - max(map(cells, arguments), default=0)
    indent = min(len(label) + HANGING, max(spare, HANGING))
    for place, argument in enumerate(arguments, 1):
        longer = f"{line} {argument}"
        room = width - (len(_ON) if place < len(arguments) else 0)
        if cells(longer) > room:
            yield line + _ON
            longer = " " * indent + argument
        line = longer
    yield line


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
