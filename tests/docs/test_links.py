"""Links lead somewhere: files, anchors, and the paths that the documents name."""

import re
from urllib.parse import unquote, urlsplit

import pytest

from tests.docs.pages import PAGES, ROOT, Page

_PATH = re.compile(r"^(?:docs|tests|examples|benchmarks|conf|mtrl_cli|\.ci|\.github)/[\w./-]*$")


def broken(page: Page, link: str) -> str | None:
    parts = urlsplit(link)
    if parts.scheme:
        return None if parts.scheme in ("https", "http") and parts.netloc else link
    file = (page.folder / unquote(parts.path)).resolve() if parts.path else ROOT / page.name
    if not file.exists() or ROOT not in [file, *file.parents]:
        return f"{link}: no such file"
    if parts.fragment:
        there = PAGES.get(str(file.relative_to(ROOT)))
        if there is None or unquote(parts.fragment) not in there.anchors:
            return f"{link}: no such heading"
    return None


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    page = PAGES[name]
    assert [told for link in page.links if (told := broken(page, link))] == []


def test_a_broken_link_is_found() -> None:
    page = Page("docs/one.md", "## Two words\n[a](nowhere.md) [b](#two-words) [c](#three)\n")
    assert page.links == ["nowhere.md", "#two-words", "#three"]
    assert page.anchors == {"two-words"}
    assert broken(page, "nowhere.md") == "nowhere.md: no such file"
    assert broken(PAGES["README.md"], "docs/configuration.md#env") is None
    assert broken(PAGES["README.md"], "docs/configuration.md#nothing") is not None


@pytest.mark.parametrize("name", PAGES)
def test_paths_that_are_named_exist(name: str) -> None:
    paths = [text for text in PAGES[name].code if _PATH.match(text)]
    shown = {
        text[2:].split()[0]
        for block in PAGES[name].blocks
        for text in [block.text]
        if text.startswith("# conf/")
    }
    assert [path for path in paths if not (ROOT / path).exists() and path not in shown] == []


def test_every_document_is_reached_from_the_readme() -> None:
    """And every Chinese one from the Chinese README."""
    for readme, folder in (("README.md", "docs"), ("README.zh-CN.md", "docs/zh-CN")):
        linked = {link.partition("#")[0] for link in PAGES[readme].links}
        there = {name for name in PAGES if name.rpartition("/")[0] == folder}
        assert there <= linked, there - linked
