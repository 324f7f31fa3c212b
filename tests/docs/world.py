"""The folder that the documents' commands are typed in: the files that they speak of are there."""

import re
import shutil
from pathlib import Path

from tests.docs.pages import PAGES, ROOT

_NAMED = re.compile(r"# ((?:conf/)?\w+\.yaml)\n")
SAVED = "20261129-122135-a7aa"
"""The id of a run that the documents speak of."""


def lay_out(folder: Path) -> None:
    """The YAML files that pages show under a name, and a saved experiment."""
    for page in PAGES.values():
        for block in page.blocks:
            if block.language == "yaml" and (named := _NAMED.match(block.text)):
                file = folder / named[1]
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(block.text, encoding="utf-8")
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    shutil.copy(folder / "conf" / "mine.yaml", elsewhere)
    shutil.copytree(ROOT / "examples", folder / "examples")
    for name in ("guess.yaml",):
        shutil.copy(ROOT / "examples/custom_task" / name, folder)
