"""``policy=``: what each way of writing it means, and what is refused before anything is made."""

import json
from pathlib import Path
from typing import Any

import pytest

from mtrl_cli.config.compose import compose
from mtrl_cli.config.resolve import resolve
from mtrl_cli.config.schema import Experiment
from mtrl_cli.errors import UsageError
from mtrl_cli.runs.commits import Commit, rollback
from mtrl_cli.runs.policies import write_policy
from mtrl_cli.training.evaluation.contest import choose_contest
from mtrl_cli.training.policies.choose import ChosenPolicy, choose_policy, server_facts

TINY = ("server.tokenizer=mtrl-tiny", "server.base_model=mtrl-tiny")
RUN = "20261129-122135-a7aa"


def uri(step: int, attempt: int = 1) -> str:
    return f"tinker://model_0123456789ab/sampler_weights/{RUN}/a{attempt}/step-{step:06d}"


def experiment(runs: Path, *overrides: str) -> Experiment:
    return resolve(compose("blackjack", [f'run.dir="{runs}"', *overrides]))


def commit(step: int, attempt: int = 1) -> dict[str, Any]:
    made = Commit(step, attempt, uri(step, attempt), step, None, {}, {"name": f"{RUN}/a{attempt}"})
    return made.to_record()


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A training run of three steps, the last one made twice; an evaluation after it; a name."""
    folder = tmp_path / RUN
    folder.mkdir()
    (folder / "config.yaml").write_text(compose("blackjack", []).yaml)
    (folder / "run.json").write_text(json.dumps({"kind": "train", "status": "finished"}))
    lines = [commit(0), commit(1), commit(2), rollback(1, 2), commit(2, 2), commit(3, 2)]
    (folder / "commits.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    later = tmp_path / "20261129-130000-beef"
    later.mkdir()
    (later / "run.json").write_text(json.dumps({"kind": "eval", "status": "finished"}))
    (tmp_path / "latest").symlink_to(later.name)
    server = server_facts(experiment(tmp_path).server)
    manifest = {"format": 1, "time": 1.0, "uri": uri(2), "policy_step": 2, "initial": uri(0)}
    write_policy(tmp_path, "best", {**manifest, "server": server}, "")
    return tmp_path


@pytest.mark.parametrize(
    ("asked", "step", "attempt"),
    [
        (f"{RUN}@1", 1, 1),
        (f"{RUN}@2", 2, 2),  # the commit that stands, not the one that was voided
        ("a7aa@last", 3, 2),
        ("20261129-12@0", 0, 1),
        ("last", 3, 2),
        ("last@1", 1, 1),
    ],
)
def test_what_a_run_committed(runs: Path, asked: str, step: int, attempt: int) -> None:
    chosen = choose_policy(experiment(runs), asked)
    assert chosen == ChosenPolicy(uri(step, attempt), step, uri(0))


def test_a_name_a_uri_and_the_base_model(runs: Path) -> None:
    here = experiment(runs)
    assert choose_policy(here, None) is None
    assert choose_policy(here, "best") == ChosenPolicy(uri(2), 2, uri(0))
    assert choose_policy(here, uri(7)) == ChosenPolicy(uri(7), 0, None)
    assert choose_policy(here, "base://mtrl-tiny") == ChosenPolicy("base://mtrl-tiny", 0, None)


def test_the_task_of_a_named_policy_is_read_from_its_manifest(runs: Path) -> None:
    file = runs / "policies" / "best" / "manifest.json"
    manifest = json.loads(file.read_text())
    for facts, warned in (({}, False), ({"task": "a.b:C"}, True)):
        file.write_text(json.dumps({**manifest, "experiment": facts}))
        here = experiment(runs)
        chosen = choose_policy(here, "best")
        assert chosen is not None
        assert ("trained on the task a.b:C" in (chosen.strange_to(here) or "")) is warned


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("bets", "did you mean policy=best"),
        ("lsat", "did you mean policy=last"),
        ("nothing-like-it", "there are: best"),
        ("a7aa", f"for the run write policy={RUN}@last"),
        ("a7aa@9", "has no step 9: its commits are 0 to 3"),
        ("a7aa@x", "write RUN@STEP"),
        ("a7aa@", "write RUN@STEP"),
        ("dead@1", "no run 'dead'"),
        ("beef@1", "is of the kind 'eval'"),
        ("../../etc", "no policy"),
        ("tinker://", "is not a URI"),
        ("tinker://m", "write tinker://MODEL/sampler_weights/NAME"),
        ("tinker://m/weights/x", "is a training state"),
        ("tinker://m/ephemeral/x", "is not a policy"),
        ("tinker://m/sampler_weights/a b", "is not a URI"),
        ("https://example.org/x", "begin with tinker://"),
        ("base://other", "another base model"),
    ],
)
def test_what_is_refused(runs: Path, asked: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        choose_policy(experiment(runs), asked)


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["server.base_model=x"], "write server.base_model=mtrl-tiny$"),
        (["server.store=/elsewhere"], "server.store is /elsewhere, not .*; write .*server.store="),
        (["server.renderer=qwen3.5"], "write server.renderer=qwen3$"),
        (
            [
                "server=tinker",
                'server.base_url="http://h:1"',
                "server.tokenizer=mtrl-tiny",
                "server.base_model=mtrl-tiny",
                "server.api_key=k",
            ],
            "server.kind is tinker, not local; write server=local$",
        ),
    ],
)
@pytest.mark.parametrize("asked", ["best", "last"])
def test_a_policy_of_another_server_is_refused_with_the_keys_to_set(
    runs: Path, asked: str, overrides: list[str], told: str
) -> None:
    with pytest.raises(UsageError, match=f"policy={asked} lives on another server: .*{told}"):
        choose_policy(experiment(runs, *overrides), asked)


def test_a_running_server_is_not_told_apart_from_a_store(runs: Path) -> None:
    """Whether it works on that store shows when it is asked for the policy."""
    here = experiment(runs, 'server.base_url="http://127.0.0.1:8008"')
    assert choose_policy(here, "best") == ChosenPolicy(uri(2), 2, uri(0))


def test_whom_an_evaluation_is_compared_with(runs: Path) -> None:
    def rival(against: str | None, *overrides: str) -> str | None:
        here = experiment(runs, *overrides)
        return choose_contest(here, against).rival_uri(here)

    assert rival(None, "policy=best") == uri(0)
    assert rival(None, f'policy="{uri(5)}"') == "base://mtrl-tiny"
    assert rival(None, f"policy={RUN}@0") is None
    assert rival(None) is None
    assert rival("none", "policy=best") is None
    assert rival("base", "policy=best") == "base://mtrl-tiny"
    assert rival("last@1", "policy=best") == uri(1)
    with pytest.raises(UsageError, match="it is the very policy"):
        rival("best", "policy=best")
    with pytest.raises(UsageError, match="it is the very policy"):
        rival("base")
    with pytest.raises(UsageError, match="no policy 'bets'"):
        rival("bets", "policy=best")
    with pytest.raises(UsageError, match=r"eval\.games is 0"):
        rival(None, "eval.games=0")


def test_a_server_that_forgets_old_policies_compares_none(runs: Path) -> None:
    here = experiment(runs, "policy=best", "server.snapshots=newest_only")
    contest = choose_contest(here, None)
    assert contest.rival_uri(here) is None
    assert contest.notice is not None
    with pytest.raises(UsageError, match="write --against none"):
        choose_contest(here, "base")


def test_a_tinker_server_may_leave_the_kind_out_of_its_uris(runs: Path) -> None:
    """As SkyRL tx does."""
    address = 'server.base_url="http://h:1"'
    there = experiment(runs, "server=tinker", address, "server.api_key=k", *TINY)
    named = "tinker://model_1/RUN-a1-step-000001"
    assert choose_policy(there, named) == ChosenPolicy(named, 0, None)
    for wrong in ("tinker://model_1", "tinker://model_1/", "tinker://model_1/weights/x"):
        with pytest.raises(UsageError, match="write tinker://MODEL/sampler_weights/NAME"):
            choose_policy(there, wrong)
    with pytest.raises(UsageError, match="is not a policy"):
        choose_policy(experiment(runs), named)
