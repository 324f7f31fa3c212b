"""Each Chinese document has the headings, commands, code, list items and first columns of tables
of its English one, so that neither changes alone."""

import re

import pytest

from tests.docs.pages import PAGES, Page
from tests.docs.shell import fenced

TWINS = {
    name: name.replace("zh-CN/", "").replace(".zh-CN", "") for name in PAGES if "zh-CN" in name
}
_WRITTEN = re.compile(r"<!-- (\w+): begin -->.*?<!-- \1: end -->", re.DOTALL)
"""Tables that a program writes stand in the English document alone."""
_ROW = re.compile(r"^\| (.+?) (?<!\\)\|", re.MULTILINE)
_ITEM = re.compile(r"^(?:- |\d+\. )", re.MULTILINE)
_COMMENT = re.compile(r"\s*(#.*|\"\"\".*)$", re.MULTILINE)
_LINE = re.compile(r"^\|.*$", re.MULTILINE)
_ENGLISH = re.compile(r"(?:\.\./|docs/)([\w-]+\.md)")
"""A document at its English place, linked or only named."""
PRODUCTS = ("Tinker", "SkyRL", "Twinkle", "OpenEnv", "OpenSpiel", "E2B", "TensorBoard", "trackio")
_CODE = re.compile(r"`[^`]+`")


def by_hand(page: Page) -> Page:
    """The document without what a program writes."""
    return Page(page.name, _WRITTEN.sub("", page.text))


def first_cells(page: Page) -> list[list[str]]:
    """What is code in the first cell of each row."""
    return [_CODE.findall(cell) for cell in _ROW.findall(page.prose)]


def code(page: Page) -> list[tuple[str, str]]:
    """Blocks that are no commands, without their comments."""
    return [
        (block.language, _COMMENT.sub("", block.text))
        for block in page.blocks
        if block.language != "bash"
    ]


def test_every_document_is_there_in_chinese() -> None:
    english = {name for name in PAGES if re.fullmatch(r"docs/[\w-]+\.md|README\.md", name)}
    assert len(english) > 20
    assert set(TWINS.values()) == english


@pytest.mark.parametrize("name", TWINS)
def test_a_chinese_document_follows_its_english_one(name: str) -> None:
    chinese, english = by_hand(PAGES[name]), by_hand(PAGES[TWINS[name]])
    assert [level for level, _ in chinese.headings] == [level for level, _ in english.headings]
    assert [line.text for line in fenced(chinese)] == [line.text for line in fenced(english)]
    assert code(chinese) == code(english)
    assert len(_ITEM.findall(chinese.prose)) == len(_ITEM.findall(english.prose))
    assert first_cells(chinese) == first_cells(english)


@pytest.mark.parametrize("name", TWINS)
def test_a_chinese_document_names_the_chinese_one_where_there_is_one(name: str) -> None:
    own = TWINS[name].rpartition("/")[2]
    there = {twin.rpartition("/")[2] for twin in TWINS.values()} - {own, "README.md"}
    assert there.isdisjoint(_ENGLISH.findall(PAGES[name].text))


@pytest.mark.parametrize("name", TWINS)
def test_one_thing_has_one_word(name: str) -> None:
    """What a run holds is 占用, and 释放 gives it back."""
    assert [word for word in ("借用", "归还") if word in PAGES[name].text] == []


def product_names(text: str) -> set[str]:
    return {word for word in PRODUCTS if word.lower() in text.lower()}


@pytest.mark.parametrize("name", TWINS)
def test_a_row_of_a_chinese_table_names_the_products_of_its_english_one(name: str) -> None:
    chinese, english = PAGES[name], PAGES[TWINS[name]]
    ours, theirs = (_LINE.findall(by_hand(page).prose) for page in (chinese, english))
    assert [product_names(row) for row in ours] == [product_names(row) for row in theirs]


def test_a_document_that_changed_alone_is_found() -> None:
    one = Page("a.md", "# A\n```bash\nmtrl runs # all\n```\n| `a.b` | c |\n")
    two = Page("b.md", "# B\n```bash\nmtrl runs # 全部\n```\n| `a.c` | c |\n## C\n")
    assert [line.text for line in fenced(one)] == [line.text for line in fenced(two)]
    assert first_cells(one) != first_cells(two)
    assert len(one.headings) != len(two.headings)
