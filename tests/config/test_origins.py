"""Every value of a composed experiment is traced to what set it."""

from pathlib import Path

import pytest

from mtrl_cli.config.compose import compose
from mtrl_cli.config.origins import Setting, settings


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "conf"
    (folder / "group").mkdir(parents=True)
    (folder / "group" / "wide.yaml").write_text("size: 32\nper_step: 2\n")
    (folder / "mine.yaml").write_text(
        "defaults: [config, {override group: wide}, _self_]\n"
        "name: mine\n"
        "group: {per_step: 3}\n"
        "server: {api_key: 'sk-literal'}\n"
        "task: {params: {deep: [1, 2]}}\n"
    )
    return folder


def by_key(*overrides: str) -> dict[str, Setting]:
    return {one.key: one for one in settings(compose("mine", list(overrides)))}


def test_each_value_names_what_set_it(conf: Path) -> None:
    found = by_key("+seed=7", "train.kl=0.5")
    told = {key: (one.value, one.origin.kind, one.origin.told) for key, one in found.items()}
    assert told["name"] == ("mine", "file", "conf/mine.yaml:2")
    assert told["group.size"] == (32, "file", "conf/group/wide.yaml:1")
    assert told["group.per_step"] == (3, "file", "conf/mine.yaml:3")
    assert told["seed"] == (7, "override", "+seed=7")
    assert told["train.kl"] == (0.5, "override", "train.kl=0.5")
    assert told["server.kind"][1:] == ("file", "server/local.yaml:1 (packaged)")
    assert told["policy"][1:] == ("file", "config.yaml:15 (packaged)")
    assert told["server.sample_timeout"] == (120.0, "default", "default")
    assert told["task.params.deep"][1:] == ("file", "conf/mine.yaml:5")


def test_an_option_chosen_by_an_override_is_where_its_values_come_from(conf: Path) -> None:
    found = by_key("group=default")
    assert found["group.size"].origin.where == "group/default.yaml (packaged)"


def test_a_secret_is_masked(conf: Path) -> None:
    assert by_key()["server.api_key"].value == "***"
    assert by_key("server.api_key=sk-given")["server.api_key"].origin.where == "server.api_key=***"
