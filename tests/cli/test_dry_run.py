"""What a dry run finds and says beyond a valid configuration: names that lead nowhere, found
without importing anything, and what a server's limits change in the plan."""

import json
from pathlib import Path

import pytest

from mtrl_cli.doctor.unseen import entrypoint_problem, renderer_names
from tests.cli.processes import mtrl

WELL = """
class Task: ...
if True:
    class Inside: ...
Alias = Task
from os import path as joined
raise SystemExit("this file must not run")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    package = tmp_path / "pack" / "age"
    package.mkdir(parents=True)
    for where in (tmp_path / "pack", package):
        (where / "__init__.py").write_text("raise SystemExit('no package must be imported')\n")
    (package / "well.py").write_text(WELL)
    (package / "open.py").write_text("from os.path import *\n")
    (package / "made.py").write_text("def __getattr__(name): ...\n")
    (package / "broken.py").write_text("class Task\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("entrypoint", "says"),
    [
        ("pack.age.well:Task", None),
        ("pack.age.well:Inside", None),
        ("pack.age.well:Alias", None),
        ("pack.age.well:joined", None),
        ("pack/age/well.py:Task", None),
        ("pack.age.open:Anything", None),
        ("pack.age.made:Anything", None),
        ("json.decoder:JSONDecoder", None),
        ("_json:Scanner", None),
        ("pack.age.well:Tusk", "has no 'Tusk'; did you mean 'Task'?"),
        ("pack.age.will:Task", "there is no module 'pack.age.will'; install it"),
        ("pack.edge.well:Task", "there is no module 'pack.edge'; install it"),
        ("pack.age.well.deep:Task", "there is no module 'pack.age.well.deep'"),
        ("no_such_module:Task", "there is no module 'no_such_module'"),
        ("pack/age/will.py:Task", "there is no file"),
        ("pack.age.broken:Task", "line 1 of "),
        ("pack.age.well", "write module:Class or path.py:Class"),
    ],
)
def test_an_entrypoint_is_found_without_importing_it(
    folder: Path, entrypoint: str, says: str | None
) -> None:
    problem = entrypoint_problem("task.entrypoint", entrypoint)
    if says is None:
        assert problem is None
    else:
        assert problem is not None
        assert problem.startswith(f"task.entrypoint {entrypoint!r}: ")
        assert says in problem


def test_renderers_are_known_by_their_source() -> None:
    from renderers.base import RENDERER_REGISTRY, _populate_registry

    _populate_registry()
    assert set(RENDERER_REGISTRY) <= renderer_names() | {"auto"}


def test_names_that_lead_nowhere_are_all_told_after_the_plan(tmp_path: Path) -> None:
    wrong = (
        "task.entrypoint=mtrl_cli.tasks.blackjack.task:Blackjac",
        "env.entrypoint=nowhere.at_all:Env",
        "server.tokenizer=./tokenizer.json",
        "server.renderer=qwen33",
    )
    done = mtrl("train", "--dry-run", *wrong, cwd=tmp_path)
    assert done.returncode == 2
    assert "Dry run complete" not in done.stdout
    assert "task        blackjack" in done.stdout
    told = done.stderr.splitlines()
    assert told[0] == "error: 4 settings are wrong"
    assert [line[7:].partition(": ")[0] for line in told[1:]] == list(wrong)
    assert "did you mean 'Blackjack'?" in told[1]
    assert "did you mean 'qwen3'?" in told[4]
    facts = json.loads(mtrl("train", "--dry-run", "--json", *wrong, cwd=tmp_path).stdout)
    assert len(facts["problems"]) == 4
    assert list(tmp_path.iterdir()) == []


def test_what_a_server_cannot_do_is_said_in_words(tmp_path: Path) -> None:
    where = ('server.base_url="http://127.0.0.1:9"', "server.base_model=m",
             "server.tokenizer=mtrl-tiny", "train.kl=0", "train.lora_rank=8")  # fmt: skip
    unknown = mtrl("train", "--dry-run", "server=tinker", *where, cwd=tmp_path, TINKER_API_KEY="k")
    assert unknown.returncode == 0, unknown.stderr
    for words in (
        "groups in flight finish before each optimizer step; no KL penalty (train.kl is 0)"
        " (snapshots: live, assumed)",
        "a training call of unknown outcome ends the run (dedupes: false, assumed)",
        "a step is one call, weighted as for a sum; train.max_tokens_per_call is refused"
        " (loss_reduction: not known, assumed)",
        "(leaks_gradients: true, assumed)",
    ):
        assert f"so          {words}" in unknown.stdout or words in unknown.stdout
    twinkle = mtrl("train", "--dry-run", "conf=blackjack_twinkle", *where, cwd=tmp_path)
    assert twinkle.returncode == 0, twinkle.stderr
    assert "groups in flight finish before each save; no KL" in twinkle.stdout
    assert "(policy_logprobs: false, known)" in twinkle.stdout
    told = ("server.snapshots=immutable", "server.dedupes=true", "server.loss_reduction=sum",
            "server.leaks_gradients=false")  # fmt: skip
    facts = json.loads(
        mtrl("train", "--dry-run", "--json", "server=tinker", *where, *told, cwd=tmp_path,
             TINKER_API_KEY="k").stdout
    )  # fmt: skip
    able = {one["name"]: one for one in facts["server"]["capabilities"]}
    for name in ("snapshots", "dedupes", "loss_reduction", "leaks_gradients"):
        assert (able[name]["source"], able[name]["changes"]) == ("configured", None)
    assert able["cancels"]["value"] is None  # found out when it is contacted


def test_how_many_environments_would_be_made(tmp_path: Path) -> None:
    size = ("train.steps=3", "group.per_step=2", "group.size=4", "eval.games=10")
    told = mtrl("train", "--dry-run", "env=openenv_served", *size, cwd=tmp_path).stdout
    # 3 · 2 · 4 of training, 2 · 10 of evaluation, 2 that compare seeds
    assert "46 sessions of one server that is started for the run, at most 10 at once" in told
    assert "3 steps × 2 groups × 4 trajectories = 24 episodes, 8 at once" in told
    assert "10 games before and after, 10 at once" in told
    assert f"in {'runs'}/ (not there yet, and not created)" in told


def test_a_temperature_that_the_trainer_does_not_know_is_told(tmp_path: Path) -> None:
    said = "logprobs are those of temperature 1"
    hot = mtrl("train", "--dry-run", "group.temperature=0.7", cwd=tmp_path)
    assert hot.returncode == 0, hot.stderr
    assert f"group.temperature is 0.7 and {said}" in hot.stdout
    assert said not in mtrl("train", "--dry-run", cwd=tmp_path).stdout
    where = ('server.base_url="http://127.0.0.1:9"', "server.base_model=m",
             "server.tokenizer=mtrl-tiny", "train.kl=0", "group.temperature=0.7")  # fmt: skip
    twinkle = mtrl("train", "--dry-run", "conf=blackjack_twinkle", *where, cwd=tmp_path)
    assert twinkle.returncode == 0, twinkle.stderr
    assert said not in twinkle.stdout


def test_what_the_server_cannot_train_is_refused_as_the_run_would(tmp_path: Path) -> None:
    where = ('server.base_url="http://127.0.0.1:9"', "server.base_model=m",
             "server.tokenizer=mtrl-tiny", "train.lora_rank=null", "train.kl=0.1")  # fmt: skip
    ended = mtrl("train", "--dry-run", "server=tinker", *where, cwd=tmp_path, TINKER_API_KEY="k")
    assert ended.returncode == 2
    assert "train.lora_rank: null trains all weights, which this server cannot" in ended.stderr
    assert "train.kl: 0.1 needs logprobs of the initial policy" in ended.stderr


def test_an_evaluation_says_how_many_environments_it_would_make(tmp_path: Path) -> None:
    games = ("eval.games=5", "env=openenv_served", "run.concurrency=4")
    told = mtrl("eval", "--dry-run", "policy=last", *games, cwd=tmp_path)
    plain = mtrl("eval", "--dry-run", *games, cwd=tmp_path)
    assert told.returncode == 2  # there is no run
    assert plain.returncode == 0, plain.stderr
    # 5 games of one policy, 2 that compare seeds
    assert "7 sessions of one server that is started for the run, at most 4 at once" in plain.stdout
