"""Composing an experiment: what is found where, and what is told when it is wrong."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mtrl_cli.config.compose import compose
from mtrl_cli.config.errors import ConfigError
from mtrl_cli.config.resolve import refuse_invalid, resolve
from mtrl_cli.config.schema import Experiment, Loss

Write = Callable[[str, str], Path]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test starts in an empty folder, with no secret set."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MTRL_API_KEY", raising=False)
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    return tmp_path


@pytest.fixture
def write(folder: Path) -> Write:
    def write_file(name: str, text: str) -> Path:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write_file


def load(*overrides: str, training: bool = True) -> Experiment:
    composed = compose(None, overrides)
    experiment = resolve(composed)
    refuse_invalid(experiment, composed, training=training)
    return experiment


def refused(*overrides: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(*overrides)
    return caught.value


def test_the_default_experiment_composes_in_an_empty_folder() -> None:
    experiment = load()
    assert experiment.name == "blackjack"
    assert experiment.server.api_key is None


def test_every_packaged_experiment_composes() -> None:
    composed = compose(None, [])
    from mtrl_cli.config.files import places

    for name in places.experiments(composed.dirs):
        assert compose(name, []).conf == name


@pytest.mark.parametrize("plus", ["", "+", "++"])
def test_overrides_set_keys_with_or_without_a_plus(plus: str) -> None:
    experiment = load(f"{plus}group.size=4", f"{plus}server.api_key=sk-1", f"{plus}train.loss=ppo")
    assert experiment.group.size == 4
    assert experiment.server.api_key == "sk-1"
    assert experiment.train.loss is Loss.ppo


def test_a_mapping_that_takes_any_key_takes_any_key() -> None:
    assert load("task.params.decks=2").task.params == {"decks": 2}


def test_a_section_can_be_set_as_a_mapping() -> None:
    assert load("group={size: 4, per_step: 2}").group.per_step == 2


def test_own_conf_folder_shadows_the_packaged_files(write: Write) -> None:
    write("conf/blackjack.yaml", "defaults: [config, _self_]\nname: mine\n")
    assert load().name == "mine"


def test_config_dir_comes_before_own_conf_folder(write: Write, folder: Path) -> None:
    write("conf/blackjack.yaml", "defaults: [config, _self_]\nname: mine\n")
    write("a folder/blackjack.yaml", "defaults: [config, _self_]\nname: nearer\n")
    composed = compose(None, [], [folder / "a folder"])
    assert resolve(composed).name == "nearer"
    assert composed.file == folder / "a folder" / "blackjack.yaml"


def test_a_folder_with_a_configuration_stands_for_it(write: Write) -> None:
    """As that of a run."""
    saved = write("runs/r1/config.yaml", compose("blackjack", ["seed=7"]).yaml)
    for asked in ("runs/r1", "runs/r1/", str(saved.parent)):
        composed = compose(asked)
        assert (composed.file, composed.container["seed"]) == (saved, 7)


def test_a_file_is_given_by_its_path_and_finds_its_neighbours(write: Write) -> None:
    write("own/group/tiny.yaml", "size: 2\nper_step: 1\n")
    write("own/exp.yaml", "defaults: [config, {override group: tiny}, _self_]\nname: exp\n")
    assert load("conf=own/exp.yaml").group.size == 2
    assert load("conf=own/exp", "group=default").group.size == 8


def test_a_saved_configuration_runs_again_and_takes_overrides(folder: Path) -> None:
    saved = compose(None, ["group.size=4", "seed=7"])
    (folder / "config.yaml").write_text(saved.yaml)
    assert load("conf=./config.yaml") == resolve(saved)
    again = load("conf=./config.yaml", "group.size=3", "budget=default")
    assert (again.group.size, again.seed) == (3, 7)


def test_an_unknown_experiment() -> None:
    error = refused("conf=blackjak")
    assert error.message == "no experiment 'blackjak'"
    assert error.at == "conf=blackjak"
    assert error.hint is not None
    assert error.hint.startswith("did you mean conf=blackjack? available: blackjack")


def test_an_experiment_that_builds_on_one_without_a_base(write: Write) -> None:
    write("conf/own.yaml", "name: own\n")
    write("conf/mine.yaml", "defaults: [own, _self_]\nname: mine\n")
    error = refused("conf=mine")
    assert error.hint is not None
    assert error.hint.startswith("begin it with `defaults: [config, _self_]`")


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("nim", "conf=nim.yaml"),
        ("nim.yml", "conf=nim.yaml"),
        ("./nmi.yaml", "conf=nim.yaml"),
        ("other", "conf=other.yml"),
        ("./blackjack.yaml", "conf=blackjack"),
        ("conf/blackjak", "conf=blackjack"),
    ],
)
def test_a_name_or_a_path_beside_what_is_there(write: Write, asked: str, meant: str) -> None:
    write("nim.yaml", "defaults: [config, _self_]\n")
    write("other.yml", "defaults: [config, _self_]\n")
    hint = refused(f"conf={asked}").hint
    assert hint is not None
    assert hint.startswith(f"did you mean {meant}? ")


@pytest.fixture
def no_files(folder: Path) -> None:
    """``NAME.yaml``, for what stands in a file's place."""
    (folder / "folder.yaml").mkdir()
    (folder / "link.yaml").symlink_to("link.yaml")
    os.mkfifo(folder / "pipe.yaml")


NO_FILES = [
    ("folder", "a folder", "conf=FOLDER needs a config.yaml in it"),
    ("link", "a link that leads nowhere", "conf=NAME chooses an experiment by its name"),
    ("pipe", "a pipe", "an experiment's file is read more than once: save it"),
]


@pytest.mark.usefixtures("no_files")
@pytest.mark.parametrize(("name", "what", "hint"), NO_FILES)
def test_what_is_no_file_in_place_of_an_experiment(name: str, what: str, hint: str) -> None:
    for asked in (f"{name}.yaml", f"./{name}"):
        error = refused(f"conf={asked}")
        assert error.message == f"'{name}.yaml' is {what}, not a file"
        assert error.at == f"conf={asked}"
        assert (error.hint or "").startswith(hint)


def test_a_pipe_of_the_shell() -> None:
    """As ``<(…)`` gives it."""
    reading, writing = os.pipe()
    assert (
        refused(f"conf=/dev/fd/{reading}").message == f"'/dev/fd/{reading}' is a pipe, not a file"
    )
    os.close(reading)
    os.close(writing)


@pytest.mark.usefixtures("no_files")
@pytest.mark.parametrize(("name", "what", "_"), NO_FILES)
@pytest.mark.parametrize("place", ["blackjack", "config", "env/openenv"])
def test_what_is_no_file_does_not_give_way_to_the_packaged_one(
    folder: Path, place: str, name: str, what: str, _: str
) -> None:
    target = folder / f"conf/{place}.yaml"
    target.parent.mkdir(parents=True)
    (folder / f"{name}.yaml").rename(target)
    assert refused().message == f"conf/{place}.yaml is {what}, not a file"


def test_an_experiment_given_without_conf() -> None:
    assert refused("blackjack").hint == "to choose an experiment write conf=blackjack"
    assert refused("mine.yaml").hint == "to choose an experiment write conf=mine.yaml"
    assert refused("seed").hint == "write seed=VALUE"


def test_an_unknown_option_of_a_group() -> None:
    error = refused("server=tinkr")
    assert error.message == "'server' has no option 'tinkr'"
    assert error.hint is not None
    assert error.hint.startswith("did you mean server=tinker?")
    assert refused("env=null").message == "'env' has no option None"


@pytest.mark.parametrize("wrong", ["group.sise=16", "+group.sise=16", "++group.sise=16"])
def test_an_unknown_key_never_gets_past_the_schema(wrong: str) -> None:
    error = refused(wrong)
    assert error.message == "unknown key 'group.sise'"
    assert error.hint == "did you mean group.size?"


def test_a_key_without_its_section() -> None:
    assert refused("learning_rate=1").hint == "did you mean train.learning_rate?"
    assert refused("trian.steps=1").hint == "did you mean train.steps?"
    assert refused("lr=1").hint == "did you mean train.learning_rate?"
    assert refused("train.lr").hint == "did you mean train.learning_rate=VALUE?"
    assert refused("env.nope=1").hint == "see `mtrl train --help`"
    assert refused("games=1").hint == "did you mean eval.games?"


def test_a_key_of_another_section_is_told_and_not_guessed() -> None:
    assert refused("task.seed=1").hint == "of that name there are seed, eval.seed"
    assert refused("eval.steps=1").hint == "of that name there is train.steps"
    assert refused("group.max_turns").hint == "of that name there is budget.max_turns"
    assert refused("kind=1").hint == "of that name there are server.kind, env.kind"
    assert refused("env.sise=1").hint == "see `mtrl train --help`"


def test_a_wrong_type_names_the_key_and_the_override() -> None:
    error = refused("group.size=abc")
    assert error.message == "group.size is a whole number, not 'abc'"
    assert error.at == "group.size=abc"


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("train.steps=null", "train.steps is a whole number, not null"),
        ("train.steps=2.5", "train.steps is a whole number, not 2.5"),
        ("train.learning_rate=fast", "train.learning_rate is a number, not 'fast'"),
        ("eval.greedy=maybe", "eval.greedy is true or false, not 'maybe'"),
        ("policy=[3]", "policy is a text or null, not [3]"),
        ("train.loss=x", "train.loss is importance_sampling, ppo, cispo, gspo or sapo, not 'x'"),
        ("sinks=wandb", "sinks is a list ([A, B]), not 'wandb'"),
        ("sinks=[wandb,foo]", "sinks[1] is tensorboard, wandb, trackio or mlflow, not 'foo'"),
        ("env.headers=3", "env.headers: not a value of this key's type"),  # they are secret
    ],
)
def test_what_a_key_takes_is_said_in_words(override: str, told: str) -> None:
    assert refused(override).message == told


def test_all_that_is_wrong_is_told() -> None:
    assert refused("train.lr=1", "seed=3", "env.nope=2").message.splitlines() == [
        "2 settings are wrong",
        "train.lr=1: unknown key 'train.lr'; did you mean train.learning_rate?",
        "env.nope=2: unknown key 'env.nope'; see `mtrl train --help`",
    ]


def test_all_that_is_wrong_in_a_file_is_told(tmp_path: Path) -> None:
    file = tmp_path / "exp.yaml"
    wrong = "group: {sise: 1}\ntrain:\n  learning_rate: 1.0e-3\n  steps: ten\nsinks: [foo]"
    file.write_text(f"defaults: [config, _self_]\n{wrong}")
    with pytest.raises(ConfigError) as caught:
        compose(str(file))
    assert sorted(caught.value.message.splitlines()[1:]) == [
        "exp.yaml:2: unknown key 'group.sise'; did you mean group.size?",
        "exp.yaml:5: train.steps is a whole number, not 'ten'",
        "exp.yaml:6: sinks[0] is tensorboard, wandb, trackio or mlflow, not 'foo'",
    ]


@pytest.mark.parametrize(
    ("text", "message", "at"),
    [
        ("name: [a\nx: b", "not valid YAML: expected ',' or ']', but got ':'", "exp.yaml:2:2"),
        ("name: a\nname: b", "not valid YAML: found duplicate key name", "exp.yaml:2:1"),
        ("- a", "the file holds no experiment", "exp.yaml"),
        ("# later", "the file is empty", "exp.yaml"),
        (
            "name: a\ntrain: {steps: 3}",
            "it builds on no other file, and does not set budget, env, eval, group, run, server,"
            " task",
            "exp.yaml",
        ),
        ("defaults: [config, _self_]\ngroup: {sise: 1}", "unknown key 'group.sise'", "exp.yaml:2"),
        (
            "defaults: [config]\nname: a",
            "the defaults list does not say where the file's own values go",
            "exp.yaml:1",
        ),
        (
            "defaults:\n- config\n- override env: opnenv\n- _self_",
            "'env' has no option 'opnenv'",
            "exp.yaml:3",
        ),
        ("defaults: [confg, _self_]", "no file 'confg' to build on", "exp.yaml:1"),
        ("defaults: [exp, _self_]", "its defaults lead back to itself", "exp.yaml:1"),
        (
            "defaults: [config, _self_]\nhydra: {run: {dir: x}}",
            "hydra: is Hydra's own configuration, and mtrl does not run as a Hydra application",
            "exp.yaml:2",
        ),
        (
            "defaults:\n- config\n- override /hydra/launcher: basic\n- _self_",
            "override /hydra/launcher: is Hydra's own configuration, and mtrl does not run as a"
            " Hydra application",
            "exp.yaml:3",
        ),
        (
            "defaults: [config, _self_]\nsinks: !!set {tensorboard}",
            "no setting takes a value of this kind: !!set",
            "exp.yaml:2",
        ),
        (
            "defaults: [config, _self_]\nname: a\nenv: {params: {day: !!timestamp 2026-01-01}}",
            "no setting takes a value of this kind: !!timestamp",
            "exp.yaml:3",
        ),
        (
            "defaults: [config, _self_]\n\ngroup.size: 4",
            "group.size: in a file, a key stands below its section",
            "exp.yaml:3",
        ),
        ("server: local", "server is a section, not one value: 'local'", "exp.yaml:1"),
        (
            "defaults: [config, _self_]\nenv: {e2b: [1]}",
            "env.e2b is a section, not a list",
            "exp.yaml:2",
        ),
        (
            "defaults: [config, _self_]\nenv: {params: [1]}",
            "env.params is a mapping ({KEY: VALUE}), not [1]",
            "exp.yaml:2",
        ),
        (
            "seed: 1\nname: ${",
            "cannot read the file: no viable alternative at input '${'",
            "exp.yaml:2",
        ),
    ],
)
def test_a_wrong_file_is_named(write: Write, text: str, message: str, at: str) -> None:
    write("exp.yaml", text)
    error = refused("conf=exp.yaml")
    assert (error.message, error.at) == (message, at)


def test_a_value_of_a_file_is_named_by_its_line(write: Write) -> None:
    """Also in a file that the experiment builds on, through an anchor, and behind overrides."""
    write("conf/own.yaml", "defaults: [config, _self_]\n\ngroup:\n  per_step: 4\n  size: 0\n")
    write("mine.yaml", "defaults: [own, _self_]\ntrain: &t\n  steps: 3\neval: {<<: *t}\n")
    assert refused("conf=mine.yaml").at == "mine.yaml:3"  # eval.steps, which there is not
    write("mine.yaml", "defaults: [own, _self_]\nname: ${nowhere}\n")
    error = refused("conf=mine.yaml", "name=x", "train.learning_rate=-1")
    assert error.message.splitlines() == [
        "2 settings are wrong",
        "conf/own.yaml:5: group.size is 0; allowed: from 1 to 100,000",
        "train.learning_rate=-1: train.learning_rate is -1; allowed: from 0 to 1,000,000",
    ]
    assert refused("conf=mine.yaml").at == "mine.yaml:2"
    assert refused("conf=mine.yaml", "name=x", "group=default", "group.size=0").at == "group.size=0"


def test_a_section_that_stands_for_a_value_is_not_quoted_whole() -> None:
    with pytest.raises(ConfigError) as caught:
        load("env.step_timeout=${train}")
    assert caught.value.message.startswith("env.step_timeout: While dereferencing interpolation")
    assert caught.value.message.endswith("could not be converted to Float")
    assert len(caught.value.message) < 250


def test_a_wrong_file_of_a_group_is_named(write: Write) -> None:
    write("conf/env/openenv.yaml", "kind: [x")
    assert refused().at == "conf/env/openenv.yaml:1:9"
    write("conf/env/openenv.yaml", "kind: openenv\nthreds: 2")
    error = refused()
    assert (error.message, error.at) == ("unknown key 'env.threds'", "conf/env/openenv.yaml:2")


@pytest.mark.parametrize(
    ("text", "message", "at"),
    [
        (
            "defaults: [config, _self_]\nhydra: {run: {dir: x}}",
            "hydra: is Hydra's own configuration, and mtrl does not run as a Hydra application",
            "conf/own.yaml:2",
        ),
        (
            "defaults:\n- config\n- override hydra/launcher: joblib\n- _self_",
            "override hydra/launcher: is Hydra's own configuration, and mtrl does not run as a"
            " Hydra application",
            "conf/own.yaml:3",
        ),
        (
            "defaults: [config, _self_]\nname: !!set {a}",
            "no setting takes a value of this kind: !!set",
            "conf/own.yaml:2",
        ),
    ],
)
def test_a_wrong_file_that_an_experiment_builds_on_is_named(
    write: Write, text: str, message: str, at: str
) -> None:
    write("conf/own.yaml", text)
    write("conf/between.yaml", "defaults: [own, _self_]")
    write("exp.yaml", "defaults: [between, _self_]")
    error = refused("conf=exp.yaml")
    assert (error.message, error.at) == (message, at)


def test_a_file_that_is_no_text(write: Write) -> None:
    write("conf/env/openenv.yaml", "").write_bytes(b"\xff\xfe")
    assert refused().message.startswith("cannot read the file: 'utf-8' codec can't decode")
    write("conf/blackjack.yaml", "").write_bytes(b"\xff\xfe")
    assert refused().message.startswith("cannot read the file: 'utf-8' codec can't decode")


def test_a_value_that_cannot_be_parsed_names_its_override() -> None:
    error = refused("seed=1", "server.base_url=http://h/v1?x=1")
    assert error.at == "server.base_url=http://h/v1?x=1"
    assert error.hint is not None
    assert "'server.base_url=\"VALUE\"'" in error.hint
    assert refused("task.params.a=[1,2").at == "task.params.a=[1,2"


def test_several_values_in_one_override() -> None:
    assert refused("seed=1,2").at == "seed=1,2"


def test_hydras_own_settings_are_refused() -> None:
    assert refused("hydra.run.dir=x").hint == "the run folder is run.dir=FOLDER"


def test_two_experiments() -> None:
    assert refused("conf=a", "conf=b").message == "conf= is given more than once"


def test_the_home_of_a_user_who_is_not_there() -> None:
    assert refused("conf=~no-such-user/x.yaml").message == "no file '~no-such-user/x.yaml'"
    with pytest.raises(ConfigError, match="no folder '~no-such-user'"):
        compose(None, [], ["~no-such-user"])


def test_a_missing_folder() -> None:
    with pytest.raises(ConfigError, match="no folder 'nowhere'"):
        compose(None, [], ["nowhere"])


def test_keys_that_a_file_leaves_open_must_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    error = refused("server=tinker", "server.base_url=http://x")
    assert "server.base_model, server.tokenizer" in error.message
    monkeypatch.setenv("TINKER_API_KEY", "sk-2")
    given = ("server.base_url=http://x", "server.base_model=m", "server.tokenizer=t")
    assert load("server=tinker", *given).server.api_key == "sk-2"


def test_a_secret_that_is_not_set_names_its_variable_and_its_key() -> None:
    error = refused("server.api_key=${oc.env:NOT_SET_ANYWHERE}")
    assert error.message == "environment variable NOT_SET_ANYWHERE is not set"
    assert error.at is not None
    assert error.at.startswith("server.api_key in ")


def test_an_interpolation_that_leads_nowhere() -> None:
    assert refused("name=${nowhere}").message == "name: Interpolation key 'nowhere' not found"


def test_composing_twice_gives_the_same() -> None:
    assert compose(None, ["seed=3"]).yaml == compose(None, ["seed=3"]).yaml


def test_a_relative_path_is_found_here_or_beside_its_file(
    write: Write, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is saved is absolute: it is the same from any folder."""
    write("own/mine.py", "")
    write("own/words.csv", "")
    write("own/tok/tokenizer.json", "")
    write(
        "own/exp.yaml",
        "defaults: [config, _self_]\n"
        "task: {entrypoint: mine.py:Task}\n"
        "env: {entrypoint: ./mine.py:Env, e2b: {files: [words.csv, not.here]}}\n"
        "server: {tokenizer: tok/tokenizer.json, store: kept}\n",
    )
    own = folder / "own"
    composed = compose("own/exp.yaml")
    config = composed.config
    assert config.task.entrypoint == f"{own}/mine.py:Task"
    assert config.env.entrypoint == f"{own}/mine.py:Env"
    assert list(config.env.e2b.files) == [f"{own}/words.csv", "not.here"]
    assert config.server.tokenizer == f"{own}/tok/tokenizer.json"
    assert config.server.store == f"{folder}/kept"
    assert composed.origin("task.entrypoint") == "own/exp.yaml:2"
    write("saved.yaml", composed.yaml)
    monkeypatch.chdir("/")
    assert compose(f"{folder}/saved.yaml", ["server.store=/x"]).config.task == config.task
    monkeypatch.chdir(folder)
    write("mine.py", "")
    assert compose("own/exp.yaml").config.task.entrypoint == f"{folder}/mine.py:Task"
    (folder / "mine.py").unlink()
    # An override is of the folder where it is typed, and a file that is nowhere stays as it is.
    typed = compose("own/exp.yaml", ["task.entrypoint=mine.py:T", "env.entrypoint=no.py:E"]).config
    assert (typed.task.entrypoint, typed.env.entrypoint) == ("mine.py:T", "no.py:E")
