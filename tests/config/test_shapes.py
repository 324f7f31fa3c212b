"""Mistakes of shape: one line with the key, the file and line or the override, never later."""

from pathlib import Path

import pytest

from mtrl_cli.config.compose import compose
from mtrl_cli.config.errors import ConfigError
from mtrl_cli.config.resolve import refuse_invalid, resolve


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(text: str, *overrides: str) -> ConfigError:
    Path("e.yaml").write_text(f"defaults: [blackjack, _self_]\n{text}\n")
    with pytest.raises(ConfigError) as caught:
        load(overrides)
    return caught.value


def load(overrides: tuple[str, ...]) -> None:
    composed = compose("./e.yaml", overrides)
    refuse_invalid(resolve(composed), composed, training=True)


NO_SECTION = "train is a section, not a list"
NO_LIST = "sinks is a list ([A, B]), not {'wandb': 'x'}"
ITEM = "sinks[0] is tensorboard, wandb, trackio or mlflow, not "


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("train: []", NO_SECTION, 2),
        ("seed: 1\ntrain:\n- steps: 3", NO_SECTION, 3),
        ("train: !!omap\n- steps: 3", NO_SECTION, 2),
        ("server:\n  - api_key: sk-12345", "server is a section, not a list", 2),
        ("env:\n  e2b:\n  - 1", "env.e2b is a section, not a list", 3),
        ("sinks: {wandb: x}", NO_LIST, 2),
        ("sinks: [[a]]", ITEM + "['a']", 2),
        ("sinks:\n- {tensorboard: 1}", ITEM + "{'tensorboard': 1}", 3),
        ("env: {e2b: {files: {a: b}}}", "env.e2b.files is a list ([A, B]), not {'a': 'b'}", 2),
        ("env: {headers: {a: [x]}}", "env.headers.a is one value, not a list", 2),
        ("env: {headers: {1: x}}", "env.headers: a name in it is a text, not 1", 2),
        ("train: {1: x}", "train: a name in it is a text, not 1", 2),
        ("seed: {api_key: sk-12345}", "seed is a whole number, not {'api_key': '***'}", 2),
        ("train: &t {<<: *t}", "a part of the file holds itself, by an anchor (`&`)", 2),
        (
            'server: {store: "a\\0b"}',
            "server.store: no text here holds a NUL character",
            2,
        ),
    ],
)
def test_in_a_file(text: str, message: str, line: int) -> None:
    error = refused(text)
    assert (error.message, error.at) == (message, f"e.yaml:{line}")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train=[]", NO_SECTION),
        ("sinks={wandb: x}", NO_LIST),
        ("sinks=[[a]]", ITEM + "['a']"),
        ("train={steps: [1]}", "train.steps is a whole number, not [1]"),
        ("env.params=[1]", "env.params is a mapping ({KEY: VALUE}), not [1]"),
    ],
)
def test_in_an_override(override: str, message: str) -> None:
    error = refused("", override)
    assert (error.message, error.at) == (message, override)


def test_in_what_an_experiment_builds_on(folder: Path) -> None:
    """An option's own file is blamed, also where the experiment's would be merged into it."""
    (folder / "conf/env").mkdir(parents=True)
    (folder / "conf/env/mine.yaml").write_text("kind: openenv\ne2b: []\n")
    (folder / "conf/base.yaml").write_text("defaults: [blackjack, _self_]\n\ntrain: [1]\n")
    for given in ("", "env: {e2b: {plan: pro}}"):
        assert refused(given, "env=mine").at == "conf/env/mine.yaml:2"
    (folder / "own.yaml").write_text("defaults: [base, _self_]\n")
    with pytest.raises(ConfigError) as caught:
        compose("./own.yaml")
    assert (caught.value.message, caught.value.at) == (NO_SECTION, "conf/base.yaml:3")


def test_what_takes_any_shape_takes_it(folder: Path) -> None:
    (folder / "e.yaml").write_text(
        "defaults: [blackjack, _self_]\ntask: {params: {a: [[1]], b: {c: {2: x}}}}\n"
    )
    params = resolve(compose("./e.yaml")).task.params
    assert params == {"a": [[1]], "b": {"c": {2: "x"}}}


def test_of_many_mistakes_twenty_are_told() -> None:
    keys = "".join(f"  k{number}: 1\n" for number in range(60))
    told = refused(f"train:\n{keys}").message.splitlines()
    assert (told[0], len(told), told[-1]) == ("60 settings are wrong", 22, "and 40 more")
    values = "".join(f"    v{number}: x\n" for number in range(60))
    told = refused(f"train:\n  lr: 1\n  loss_config:\n{values}").message.splitlines()
    assert (told[0], len(told)) == ("more than 20 settings are wrong", 22)
    assert (told[1].split(";")[0], told[-1]) == ("e.yaml:3: unknown key 'train.lr'", "and more")
    told = refused("", *(f"train.k{number}=1" for number in range(25))).message.splitlines()
    assert (told[0], told[-1]) == ("25 settings are wrong", "and 5 more")


def test_an_entrypoint_longer_than_any_path() -> None:
    error = refused("", f"task.entrypoint={'a' * 10_000}.py:Task")
    assert error.message.endswith("…; allowed: at most 4,000 characters")
    assert len(error.message) < 300


def test_a_base_that_holds_itself_is_named_by_its_line(folder: Path) -> None:
    (folder / "conf").mkdir()
    (folder / "conf/base.yaml").write_text(
        "defaults: [blackjack, _self_]\ntrain: &t {<<: *t, steps: 3}\n"
    )
    (folder / "own.yaml").write_text("defaults: [base, _self_]\n")
    with pytest.raises(ConfigError) as caught:
        compose("./own.yaml")
    assert caught.value.message.startswith("a part of the file holds itself")
    assert caught.value.at == "conf/base.yaml:2"


def test_a_folder_whose_name_looks_like_an_interpolation(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = folder / "a ${b}"
    own.mkdir()
    (own / "mine.py").write_text("")
    monkeypatch.chdir(own)
    composed = compose(None, ["env.entrypoint=mine.py:Env", "server.store=kept"])
    (own / "saved.yaml").write_text(composed.yaml)
    for one in (composed, compose("./saved.yaml")):
        experiment = resolve(one)
        assert experiment.env.entrypoint == f"{own}/mine.py:Env"
        assert experiment.server.store == f"{own}/kept"
