"""The documents as a reader sees them: headings, fenced blocks, words in code, links."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^(#+) (.+)$", re.MULTILINE)
_CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block; ``line`` is the line of its first fence."""

    page: str
    line: int
    language: str
    text: str

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Page:
    """One Markdown file; ``name`` is its path in the repository."""

    name: str
    text: str

    @property
    def folder(self) -> Path:
        return (ROOT / self.name).parent

    @cached_property
    def blocks(self) -> list[Block]:
        return [
            Block(self.name, self.text.count("\n", 0, at.start()) + 1, at[1], at[2])
            for at in _FENCE.finditer(self.text)
        ]

    @cached_property
    def prose(self) -> str:
        """What stands outside of fenced blocks."""
        return _FENCE.sub("", self.text)

    @cached_property
    def headings(self) -> list[tuple[int, str]]:
        """Level and words."""
        return [(len(marks), words) for marks, words in _HEADING.findall(self.prose)]

    @cached_property
    def anchors(self) -> set[str]:
        """What ``#…`` may name: the headings as GitHub turns them into anchors."""
        slugs: list[str] = []
        for _, words in self.headings:
            slug = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
            again = sum(one == slug or one.startswith(f"{slug}-") for one in slugs)
            slugs.append(f"{slug}-{again}" if slug in slugs else slug)
        return set(slugs)

    @cached_property
    def code(self) -> list[str]:
        """Words in backticks, outside of blocks."""
        return _CODE.findall(self.prose)

    @cached_property
    def links(self) -> list[str]:
        return _LINK.findall(_CODE.sub("", self.prose))


def pages() -> Iterator[Page]:
    """The README, the documents and the guide for contributors, in both languages."""
    files = [*ROOT.glob("README*.md"), *ROOT.glob("docs/**/*.md"), ROOT / ".github/CONTRIBUTING.md"]
    for file in sorted(files):
        yield Page(str(file.relative_to(ROOT)), file.read_text(encoding="utf-8"))


PAGES = {page.name: page for page in pages()}
