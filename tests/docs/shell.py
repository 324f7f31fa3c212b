"""Commands in the documents, as a shell would read them."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from tests.docs.pages import PAGES, Block, Page

_BETWEEN = {"&&", "|", "||", ";", "&"}
_ASSIGNMENT = re.compile(r"[A-Z_][A-Z0-9_]*=")
_COMMENT = re.compile(r"(?:^|\s)#.*$")


@dataclass(frozen=True)
class Line:
    """One line of a block, continuations joined and the comment gone; or, where ``in_prose``,
    words in backticks, which may leave an argument out."""

    where: str
    text: str
    in_prose: bool = False


@dataclass(frozen=True)
class Command:
    """One program with its arguments; ``text`` is the whole line that it stands in."""

    where: str
    text: str
    words: tuple[str, ...]
    in_prose: bool = False

    @property
    def program(self) -> str:
        return self.words[0]


def lines(block: Block) -> Iterator[Line]:
    for text in block.text.replace("\\\n", " ").splitlines():
        if told := " ".join(_COMMENT.sub("", text).split()):
            yield Line(block.where, told)


def commands(line: Line) -> Iterator[Command]:
    """The programs of a line, without what is assigned before them."""
    reader = shlex.shlex(line.text, posix=True, punctuation_chars="|&;")
    reader.whitespace_split, reader.commenters = True, ""
    words: list[str] = []
    for word in [*reader, ";"]:
        if word not in _BETWEEN:
            words.append(word)
            continue
        while words and _ASSIGNMENT.match(words[0]):
            words.pop(0)
        if words:
            yield Command(line.where, line.text, tuple(words), line.in_prose)
        words = []


def fenced(page: Page) -> list[Line]:
    """Every line of a page's ``bash`` blocks."""
    return [line for block in page.blocks if block.language == "bash" for line in lines(block)]


def inline(page: Page) -> list[Line]:
    """Every command of mtrl that a page names in its text."""
    texts = (text for text in page.code if text.startswith("mtrl ") and "…" not in text)
    return [Line(page.name, text, in_prose=True) for text in texts]


def all_commands() -> list[Command]:
    told = (line for page in PAGES.values() for line in [*fenced(page), *inline(page)])
    return [command for line in told for command in commands(line)]
