"""``mtrl train --resume``: what is refused, with which exit code, and what is said."""

import json
from pathlib import Path

import pytest

from mtrl_cli.config.compose import compose
from mtrl_cli.config.differences import RULES, differences
from mtrl_cli.config.keys import schema_keys
from mtrl_cli.display.text import run_tail
from mtrl_cli.runs.commits import Commit, read_history
from mtrl_cli.runs.files import RecordFile
from tests.cli.processes import mtrl
from tests.runs.dead import Line, amend, dead_run
from tests.runs.live import SCRIPTED, Train

BLACKJACK = compose("blackjack").yaml


def committed(folder: Path, steps: int, *, state: int | None = None) -> None:
    """Write commits of ``steps`` steps of one group; ``state`` is the step that has a state."""
    file = RecordFile(folder / "commits.jsonl")
    for step in range(steps + 1):
        groups = {step - 1: "trained"} if step else {}
        uri = "tinker://model_1/weights/w" if step == state else None
        file.append(Commit(step, 1, f"tinker://p{step}", step, uri, groups, {}).to_record())
    file.close()


def test_no_such_run(tmp_path: Path) -> None:
    ended = mtrl("train", "--resume", "nothing", cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (3, "")
    assert ended.stderr == "error: no run 'nothing': there are no runs in runs (see --runs-dir)\n"


def test_only_training_is_resumed(tmp_path: Path) -> None:
    folder = dead_run(tmp_path / "runs", config=BLACKJACK)
    amend(folder, kind="rollout")
    ended = mtrl("train", "--resume", "last", cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    told = f"error: {folder.name} is a rollout run, and only training can be resumed"
    assert ended.stderr.startswith(told)


def test_a_run_that_lives_is_left_alone(tmp_path: Path) -> None:
    with Train(tmp_path, (*SCRIPTED[:5], "server.store=store")) as run:
        run.until(lambda: run.state().get("step", 0) >= 1)
        ended = mtrl("train", "--resume", "last", cwd=tmp_path)
        assert ended.returncode == 4
        assert f"error: {run.id} is still running (attempt 1, process {run.process.pid}" in (
            ended.stderr
        )
        assert f" hint: end it first: mtrl cancel {run.id}\n" in ended.stderr
        assert run.state()["attempt"] == 1


def test_a_finished_run_says_so_and_how_to_go_on(tmp_path: Path) -> None:
    folder = dead_run(tmp_path / "runs", config=BLACKJACK)
    amend(folder, status="finished")
    committed(folder, 150, state=150)
    more = f"mtrl train --resume {run_tail(folder.name)} train.steps=300 --force"
    told = f"{folder.name} is finished, 150 steps; for more steps: {more}\n"
    for option in ((), ("--dry-run",)):
        ended = mtrl("train", "--resume", "last", *option, cwd=tmp_path)
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, told, "")


def test_a_task_beside_its_yaml_file_is_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "task.py").write_text("class Mine: ...\n")
    file = tmp_path / "mine.yaml"
    file.write_text("defaults: [config, _self_]\nname: mine\ntask: {entrypoint: task.py:Mine}\n")
    monkeypatch.chdir("/")
    committed(dead_run(tmp_path / "runs", config=compose(str(file)).yaml), 3, state=2)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    asked = ("--resume", "last", "--runs-dir", "../runs", "--dry-run")
    ended = mtrl("train", *asked, cwd=elsewhere)
    assert (ended.returncode, ended.stderr) == (0, "")
    (tmp_path / "task.py").unlink()
    ended = mtrl("train", *asked, cwd=elsewhere)
    assert ended.returncode == 2
    assert f"there is no file '{tmp_path}/task.py'" in ended.stderr


def test_every_key_that_differs_is_named(tmp_path: Path) -> None:
    folder = dead_run(tmp_path / "runs", config=BLACKJACK)
    asked = ("seed=7", "train.steps=3", "eval.games=10")
    for force in ((), ("--force",)):
        ended = mtrl("train", "--resume", "last", *force, *asked, cwd=tmp_path)
        assert (ended.returncode, ended.stdout) == (2, "")
        first, *rest = ended.stderr.splitlines()
        assert (
            first == f"error: {folder.name} was started with another configuration, 3 keys differ:"
        )
        assert [line.strip().partition(" (")[0] for line in rest[:3]] == [
            "eval.games: 6000 → 10", "seed: 0 → 7", "train.steps: 150 → 3",
        ]  # fmt: skip
        assert "(needs --force)" in rest[0]
        assert "refused: every task" in rest[1]
    assert json.loads((folder / "run.json").read_text())["attempt"] == 1


@pytest.mark.parametrize(
    ("kept", "says"),
    [(0, "holds no commit"), (3, "ends at step 2")],
    ids=["all", "the last ones"],
)
def test_commits_that_are_lost_are_not_made_again(tmp_path: Path, kept: int, says: str) -> None:
    folder = dead_run(tmp_path / "runs", config=BLACKJACK)
    amend(folder, status="cancelled", step=4)
    committed(folder, 4, state=2)
    path = folder / "commits.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:kept]))
    left = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    ended = mtrl("train", "--resume", "last", cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (1, "")
    told = f"error: runs/{folder.name}/commits.jsonl {says}, but run.json tells of step 4"
    assert ended.stderr.startswith(told)
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == left


def test_a_dry_run_says_where_it_would_begin(tmp_path: Path) -> None:
    folder = dead_run(tmp_path / "runs", config=BLACKJACK)
    committed(folder, 3, state=2)
    asked = ("--resume", "last", "train.steps=200", "--force", "--dry-run", "--json")
    ended = mtrl("train", *asked, cwd=tmp_path)
    facts = json.loads(ended.stdout)
    assert facts["resumes"] == {
        "run": folder.name,
        "folder": f"runs/{folder.name}",
        "attempt": 2,
        "step": 2,
    }
    assert (facts["steps"], facts["steps_left"]) == (200, 198)
    assert facts["trajectories"] == 198 * facts["groups_per_step"] * facts["group_size"]
    assert facts["evaluation"]["before"]
    assert json.loads((folder / "run.json").read_text())["attempt"] == 1
    amend(folder, evaluation={"before": {"mean": 0.0}})
    told = mtrl("train", *asked[:-1], cwd=tmp_path).stdout
    assert "198 of 200 steps × 20 groups × 8 trajectories = 31,680 episodes" in told
    assert "6,000 games after, none before: those are recorded, or " in told
    assert "37,682 instances in this process" in told  # and 2 that compare seeds
    assert f"runs/{folder.name} as attempt 2, going on after step 2" in told


@pytest.mark.parametrize(
    ("after", "refused"),
    [
        ([], True),
        pytest.param(
            [("call", "a1/optim_step/3", "unknown", {"kind": "optim_step", "model": "m"})],
            True,
            marks=pytest.mark.long,
        ),
        ([("call", "a1/optim_step/3", "done", {"kind": "optim_step", "model": "m"})], False),
    ],
    ids=["gradients", "a step of unknown outcome", "stepped"],
)
def test_a_server_that_leaks_gradients(tmp_path: Path, after: list[Line], refused: bool) -> None:
    """Of a server of which nothing is known it is assumed."""
    base = [*SCRIPTED[5:], 'server.base_url="http://127.0.0.1:9"']
    facts = {"kind": "forward_backward", "model": "m"}
    passed: Line = ("call", "a1/forward_backward/2", "done", facts)
    config = compose("blackjack", base).yaml
    dead_run(tmp_path / "runs", [passed, *after], config)
    told = "broke off with gradients of m that were not stepped"
    for force in ((), ("--force",)):
        asked = ("train", "--resume", "last", *force)
        ended = mtrl(*asked, cwd=tmp_path, TINKER_API_KEY="none-needed")
        if refused and not force:
            assert ended.returncode == 2
            assert told in ended.stderr
            assert "resume with --force" in ended.stderr
        else:
            assert ended.returncode == 1  # nobody answers there
            assert "no training server answers" in ended.stderr


def test_options_of_a_resume_need_one(tmp_path: Path) -> None:
    for option in (("--force",), ("--runs-dir", "runs")):
        ended = mtrl("train", *option, "--dry-run", cwd=tmp_path)
        assert ended.returncode == 2
        assert "go with --resume" in ended.stderr


def test_the_rules_name_keys_that_there_are() -> None:
    assert set(RULES) - {""} <= set(schema_keys())


@pytest.mark.parametrize(
    ("before", "now", "safe"),
    [
        ([], ["train.steps=200"], True),
        ([], ["train.steps=99"], False),  # 100 are committed
        (["train.schedule=cosine"], ["train.schedule=cosine", "train.steps=200"], False),
        ([], ["train.learning_rate=0.5"], False),
        ([], ["train.loss_config={clip_low_threshold: 0.9}"], False),
        ([], ["train.checkpoint_every=1"], True),
        ([], ["env.step_timeout=1"], True),
        ([], ["env.max_observation=1"], False),
        ([], ["server.base_url='http://elsewhere'"], True),
        ([], ["server.base_model=other"], False),
        ([], ["task.unfinished_reward=0"], False),
        ([], ["eval.greedy=true"], True),
    ],
)
def test_what_is_safe_to_change(before: list[str], now: list[str], safe: bool) -> None:
    found = differences(compose("blackjack", before), compose("blackjack", now), 100)
    assert [difference.rule.safe for difference in found] == [safe]


def test_secrets_and_the_folder_of_runs_are_not_compared() -> None:
    other = compose("blackjack", ["server.api_key=abcdefg", "run.dir=elsewhere"])
    assert differences(compose("blackjack"), other, 0) == []


@pytest.mark.long
def test_an_earlier_state_where_the_server_has_lost_the_last_one(tmp_path: Path) -> None:
    store = tmp_path / "store"
    settings = (
        "server.store=store", "train.steps=4", "train.checkpoint_every=2", "train.lora_rank=4",
        "group.size=2", "group.per_step=1", "eval.games=2", "env.check_seeds=false",
    )  # fmt: skip
    assert mtrl("train", *settings, cwd=tmp_path).returncode == 0
    # A run that trains nothing does not take the place of the last one that does.
    assert mtrl("rollout", *settings, "--groups", "1", cwd=tmp_path).returncode == 0
    [lost] = store.glob("models/*/weights/*step-000004.npz")
    lost.unlink()

    more = ("train.steps=5", "--force")
    # The store was named relative to the folder that the run was started in.
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    runs = ("--runs-dir", str(tmp_path / "runs"))
    ended = mtrl("train", "--resume", "last", *runs, *more, cwd=elsewhere)
    assert ended.returncode == 1
    assert "the training state of step 4 was not loaded: " in ended.stderr
    assert f"is not in the store; server.store is {store}" in ended.stderr
    assert list(elsewhere.iterdir()) == []
    assert "hint: begin at another state (0, 2): mtrl train --resume RUN@STEP" in ended.stderr

    [early] = store.glob("models/*/weights/*step-000002.npz")
    early.rename(tmp_path / "kept")
    run = (tmp_path / "runs" / "latest").resolve()
    before = (run / "commits.jsonl").read_text()
    ended = mtrl("train", "--resume", "last@2", *more, cwd=tmp_path)
    assert ended.returncode == 1
    assert "hint: begin at another state (0, 4): mtrl train --resume RUN@STEP" in ended.stderr
    # The state is lost; what was reached is not.
    assert (run / "commits.jsonl").read_text() == before
    assert {path.name for path in (run / "trajectories").iterdir()} == {
        f"step-{step:06d}.jsonl.gz" for step in range(1, 5)
    }
    state = json.loads((run / "run.json").read_text())
    assert (state["step"], set(state["evaluation"])) == (4, {"before", "after"})
    assert mtrl("verify", run.name, cwd=tmp_path).returncode == 0
    (tmp_path / "kept").rename(early)

    ended = mtrl("train", "--resume", "last@3", *more, cwd=tmp_path)
    assert ended.returncode == 2
    assert "no training state of step 3 stands; a resume can begin at 0, 2 or 4" in ended.stderr
    ended = mtrl("train", "--resume", "last@x", *more, cwd=tmp_path)
    assert ended.returncode == 2
    assert "write RUN@STEP" in ended.stderr

    ended = mtrl("train", "--resume", "last@2", *more, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    [trained] = [
        path
        for path in (tmp_path / "runs").iterdir()
        if not path.is_symlink() and (path / "commits.jsonl").read_text()
    ]
    found = read_history(trained / "commits.jsonl")
    assert [commit.step for commit in found.commits] == [0, 1, 2, 3, 4, 5]
    assert sorted(found.consumed) == [0, 1, 2, 3, 4]
    checked = mtrl("verify", trained.name, cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout
