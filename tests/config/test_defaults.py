"""Malformed defaults lists: one line in mtrl's words with the file, its line and what to write."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mtrl_cli.config.compose import Composed, compose
from mtrl_cli.config.errors import ConfigError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Own files: an experiment, values without a base, and one in a folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf/sub").mkdir(parents=True)
    (tmp_path / "conf/few.yaml").write_text("group: {size: 2}\n")
    (tmp_path / "conf/sub/inner.yaml").write_text("defaults: [/blackjack, _self_]\nseed: 4\n")
    (tmp_path / "conf/sub/near.yaml").write_text("defaults: [blackjack, _self_]\nseed: 4\n")
    return tmp_path


def composed(listed: str, values: str = "group: {size: 3}") -> Composed:
    Path("exp.yaml").write_text(f"# mine\n\ndefaults: {listed}\n{values}\n")
    return compose("./exp.yaml")


def refused(listed: str, values: str = "group: {size: 3}") -> tuple[str, str | None, str | None]:
    with pytest.raises(ConfigError) as caught:
        composed(listed, values)
    return caught.value.message, caught.value.at, caught.value.hint


@pytest.mark.parametrize(
    ("listed", "message", "hint"),
    [
        ("blackjack", "defaults is a list, not 'blackjack'", "`defaults: [blackjack, _self_]`"),
        ("{env: e2b}", "defaults is a list, not {'env': 'e2b'}", "`defaults: [config, _self_]`"),
        ("null", "defaults is a list, not null", "`defaults: [config, _self_]`"),
        ("3", "defaults is a list, not 3", "`defaults: [config, _self_]`"),
        ("[[config], _self_]", "['config'] in a defaults list names no file", "`- config`"),
        ("[3, _self_]", "3 in a defaults list names no file to build on", "write `- NAME`"),
        ("['', _self_]", "'' in a defaults list names no file to build on", "write `- NAME`"),
        ("[./a, _self_]", "`./a` in a defaults list: a file to build on is named", "`- a`; it is"),
        ("[config, override env, _self_]", "`override env` chooses no option", "env: OPTION`"),
        ("[config, {}, _self_]", "an entry of a defaults list is one group and its option", "out"),
        ("[config, {env: a, run: b}]", "an entry of a defaults", "`- env: a` and `- run: b`, each"),
        ("[config, {override: e2b}, _self_]", "`override: e2b` in a defaults list names no", "env"),
        ("[config, {1: 2}, _self_]", "`1: 2` in a defaults list names no config group", "- over"),
        ("[config, {override env: on}]", "override env in a defaults list: an option is", "NAME`"),
        ("[config, {override env: {a: b}}]", "override env in a defaults list: an option is", "NA"),
        (
            "[config, {env: [e2b, 3]}]",
            "env in a defaults list: an option is a name",
            "`- env: NAME`",
        ),
        ("[config, {'override env ': e2b}]", "`override env : e2b` in a defaults list names", "as"),
        ('["a\\0b", _self_]', "'a\\x00b' in a defaults list names no file", "write `- NAME`"),
        (f"[{'x' * 3000}, _self_]", f"'{'x' * 59} in a defaults list names no file", "- NAME"),
        ("[config, {override nope: x}, _self_]", "there is no config group 'nope'", "available: "),
        ("[config, {evn: x}, _self_]", "there is no config group 'evn'", "did you mean env?"),
        ("[{override env: e2b}, _self_]", "it builds on nothing that chooses 'env'", "`- config`"),
        ("[config, _self_, _self_]", "_self_ is in the defaults list twice", "keep the last one"),
        ("[config, config, _self_]", "`config` is in the defaults list twice", "keep the last one"),
        ("[blackjack, records, _self_]", "`blackjack` and `records` both choose", "build on one"),
        ("[config, blackjack, _self_]", "`config` and `blackjack` both", "leave `config` out"),
        ("[config, {env: e2b}, _self_]", "`config` and `env: e2b` both choose env", "override env"),
        (
            "[config, {override env: e2b}, {override env: openenv}, _self_]",
            "`override env: e2b` and `override env: openenv` override the same group",
            "keep one of them",
        ),
        (
            "[{override env: e2b}, config, _self_]",
            "`override env` stands before an",
            "put it behind",
        ),
        ("[config, {override env: '???'}, _self_]", "no option of 'env' is chosen", "env=OPTION"),
        ("[config, {override env: null}, _self_]", "neither this file nor what it", "begin it"),
        ("[]", "it builds on no other file, and does not set budget, env", "begin it with"),
        (
            "[sub/inner, _self_]",
            "`sub/inner` fills a section 'sub', which there is not",
            "write `- sub/inner@_global_`",
        ),
    ],
)
def test_a_malformed_list(listed: str, message: str, hint: str) -> None:
    told, at, what = refused(listed)
    assert told.startswith(message)
    assert at == "exp.yaml:3"
    assert hint in (what or "")


def test_several_options_of_a_group_the_last_of_which_wins(folder: Path) -> None:
    (folder / "conf/group").mkdir()
    (folder / "conf/group/big.yaml").write_text("{size: 32, per_step: 4}\n")
    (folder / "conf/group/wide.yaml").write_text("size: 64\n")
    made = composed("[blackjack, {override group: [big, wide]}, _self_]", "seed: 1").container[
        "group"
    ]
    assert (made["size"], made["per_step"]) == (64, 4)
    told, at, _ = refused("[blackjack, {override group: [gone, big]}, _self_]", "seed: 1")
    assert (told, at) == ("'group' has no option 'gone'", "exp.yaml:3")


def test_a_file_to_build_on_that_holds_a_list(folder: Path) -> None:
    (folder / "conf/listed.yaml").write_text("- a\n")
    told, at, _ = refused("[listed, _self_]")
    assert (told, at) == ("the file holds no experiment", "conf/listed.yaml")


def test_the_line_is_that_of_the_entry() -> None:
    for wrong in ("server: tinker", "3", "override nope: x", "records", "gone", "override env: no"):
        assert refused(f"\n- config\n- {wrong}\n- _self_")[1] == "exp.yaml:5"


def test_a_name_in_a_folder_is_one_of_the_folder() -> None:
    assert refused("[sub/near@_global_, _self_]") == (
        "no file 'sub/blackjack' to build on",
        "conf/sub/near.yaml:1",
        "write `/blackjack`: without `/` it is looked for in sub/",
    )
    assert composed("[sub/inner@_global_, _self_]").config.seed == 4


def test_a_malformed_list_of_an_option(folder: Path) -> None:
    (folder / "conf/env").mkdir()
    (folder / "conf/env/mine.yaml").write_text("kind: openenv\ndefaults: openenv\n")
    told = refused("[config, {override env: mine}, _self_]")
    assert told[:2] == ("defaults is a list, not 'openenv'", "conf/env/mine.yaml:2")


@pytest.mark.parametrize(
    ("listed", "values", "lost"),
    [
        ("[_self_, blackjack]", "name: mine\ngroup: {size: 3, per_step: 20}", "name, group.size"),
        ("[blackjack, _self_, few]", "group: {size: 3}\nsinks: [wandb]", "group.size"),
    ],
)
def test_own_values_that_are_replaced(listed: str, values: str, lost: str) -> None:
    assert refused(listed, values) == (
        f"what stands behind `_self_` replaces this file's own {lost}",
        "exp.yaml:3",
        "put `_self_` last: the last entry wins",
    )


@pytest.mark.parametrize(
    ("listed", "values"),
    [
        ("[_self_, blackjack]", ""),
        ("[_self_, blackjack]", "group: {size: 8}\nsinks: [wandb]"),
        ("[config, _self_, {override env: e2b}]", "env: {threads: 3}"),
    ],
)
def test_a_self_before_others_that_replaces_nothing(listed: str, values: str) -> None:
    assert composed(listed, values)


def test_a_replaced_value_of_a_file_that_is_built_on(folder: Path) -> None:
    """What the experiment sets itself, or an override does, is not lost."""
    (folder / "conf/own.yaml").write_text("defaults: [_self_, blackjack]\ngroup: {size: 2}\n")
    assert composed("[own, _self_]").config.group.size == 3
    Path("exp.yaml").write_text("defaults: [own, _self_]\n")
    assert compose("./exp.yaml", ["group.size=4"]).config.group.size == 4
    with pytest.raises(ConfigError) as caught:
        compose("./exp.yaml")
    assert caught.value.at == "conf/own.yaml:1"


NAMES = [
    "config", "blackjack", "few", "_self_", "sub/inner", "./few", "/few", "env/e2b", "no", "", "@",
    "override env", "few@", "a b", "~", "???", "${env}", "few.yaml", "exp", ":", "env/", "//",
]  # fmt: skip
GROUPS = [
    "env", "override env", "override /env", "optional env", "env@run", "no", "sub", "_self_", "",
    "override", "env/", "group", "override server", "override env@", "override optional", 1, None,
]  # fmt: skip
OPTIONS = ["e2b", "openenv", "no", "_self_", "???", "${server}", "/e2b", ""]
ODD = [None, 3, True, 1.5, [], {}, ["e2b"], {"a": {"b": "c"}}]
ENTRIES = st.sampled_from(NAMES + ODD) | st.dictionaries(
    st.sampled_from(GROUPS), st.sampled_from(OPTIONS + ODD), max_size=2
)


@pytest.mark.long
@settings(
    max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
@given(listed=st.lists(ENTRIES, max_size=4) | st.sampled_from(NAMES + ODD), base=st.booleans())
def test_any_list_composes_or_is_told(listed: Any, base: bool) -> None:
    if base and isinstance(listed, list):
        listed = ["config", *listed, "_self_"]
    error = None
    try:
        composed(json.dumps(listed))
    except ConfigError as refusal:
        error = refusal
    if error is not None:
        assert "\n" not in error.message
        assert "Could not" not in error.message
        assert ".yaml" in (error.at or "")
