"""Every command of the documents could be typed as it stands: the program, the options and the
configuration keys exist, and the experiment that it composes is valid."""

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from mtrl_cli.config.compose import compose
from mtrl_cli.config.keys import known, schema_keys
from mtrl_cli.config.resolve import refuse_invalid, resolve
from tests.cli.processes import mtrl
from tests.docs.judge import problem
from tests.docs.pages import PAGES
from tests.docs.shell import Command, Line, all_commands, commands
from tests.docs.world import SAVED, lay_out

FILE_ENDINGS = (".py", ".md", ".json", ".jsonl", ".yaml", ".txt", ".log", ".html", ".gz", ".npz")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs")
    lay_out(folder)
    saved = folder / "runs" / SAVED
    saved.mkdir(parents=True)
    (saved / "config.yaml").write_text(compose("blackjack").yaml)
    return folder


@pytest.fixture(autouse=True)
def _here(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world)


def test_every_command_could_be_typed() -> None:
    told = list(dict.fromkeys(all_commands()))
    assert len(told) > 100
    judged: dict[tuple[str, ...], str | None] = {}
    for one in told:
        if one.words not in judged:
            judged[one.words] = problem(one)
    wrong = [f"{one.where}: {one.text}: {judged[one.words]}" for one in told if judged[one.words]]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("mtrl trian", "mtrl has no trian"),
        ("mtrl train --dry-rnu", "No such option: --dry-rnu"),
        ("mtrl train group.sise=16", "unknown key 'group.sise'"),
        ("A=1 mtrl train conf=nowhere | tee log", "no experiment 'nowhere'"),
        ("mtrl train group.size=1", "group.size is 1"),
        ("mtrl train -m group.size=8,0", "group.size is 0"),
        ("mtrl cancel", "mtrl cancel: Missing parameter: run"),
        ("mtrl runs --help --now", "mtrl runs has no --now"),
        ("python -m pip install '.[nothing]'", "there is no extra nothing"),
        ("python -m benchmarks.nothing", "there is no benchmarks/nothing"),
        ("python -m benchmarks.pipeline --repet 3", "pipeline.py has no --repet"),
        ("train conf=blackjack", "no test knows the program 'train'"),
    ],
)
def test_a_wrong_command_is_found(text: str, wrong: str) -> None:
    """What the check above rests on."""
    found = [told for one in commands(Line("here", text)) if (told := problem(one))]
    assert wrong in "".join(found)


def test_commands_stand_in_bash_blocks() -> None:
    """Elsewhere nothing would look at them. A line with ``$`` is output, looked at below."""
    stray = [
        f"{block.where}: {line}"
        for page in PAGES.values()
        for block in page.blocks
        if block.language == ""
        for line in block.text.splitlines()
        if line.startswith(("mtrl ", "pip ", "python ")) and "[--" not in block.text
    ]
    assert not stray


def test_a_synopsis_names_options_that_exist() -> None:
    found = [
        Command(block.where, block.text, tuple(block.text.split()))
        for page in PAGES.values()
        for block in page.blocks
        if block.text.startswith("python ") and "[--" in block.text
    ]
    assert found
    assert [told for one in found if (told := problem(one))] == []


def test_every_key_that_is_named_exists() -> None:
    """Words in code such as ``group.size``, ``server.kind: tinker`` or ``env.kind=e2b``."""
    sections = {key for key, kind in schema_keys().items() if kind == "section"}
    wrong = []
    for page in PAGES.values():
        for text in page.code:
            key = text.split("=")[0].split(":")[0].removesuffix(".*").strip()
            if key.partition(".")[0] in sections and "." in key and not key.endswith(FILE_ENDINGS):
                if not all(part.replace("_", "").isalnum() for part in key.split(".")):
                    continue
                if not known(key):
                    wrong.append(f"{page.name}: {text}")
    assert not wrong, "\n".join(wrong)


def below(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The keys of a YAML file, dotted, down to what the schema leaves open."""
    for name, value in values.items():
        key = prefix + name
        yield key
        if isinstance(value, dict) and schema_keys().get(key) == "section":
            yield from below(value, f"{key}.")


def test_yaml_blocks_compose() -> None:
    """A whole experiment is one that could be trained; a part of one has keys that exist."""
    shown = {
        block.text: block.where
        for page in PAGES.values()
        for block in page.blocks
        if block.language == "yaml"
    }
    whole = {text: where for text, where in shown.items() if "defaults" in yaml.safe_load(text)}
    assert len(whole) >= 3
    assert len(shown) > len(whole)
    for text, where in shown.items():
        values = yaml.safe_load(text)
        values.pop("defaults", None)
        assert [key for key in below(values) if not known(key)] == [], where
    for number, text in enumerate(whole):
        Path(f"conf/shown{number}.yaml").write_text(text)
        composed = compose(f"shown{number}")
        refuse_invalid(resolve(composed, secrets=False), composed, training=True)


def test_what_a_console_shows_is_what_is_printed(tmp_path: Path) -> None:
    shown = [
        block
        for page in PAGES.values()
        for block in page.blocks
        if block.text.startswith("$ mtrl ")
    ]
    assert shown
    for text in {block.text for block in shown}:
        line, _, printed = text.partition("\n")
        done = mtrl(*shlex.split(line)[2:], cwd=tmp_path)
        assert done.stdout + done.stderr == printed
