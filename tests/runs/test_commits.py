"""Which commits stand, from the records alone."""

from pathlib import Path

import pytest

from mtrl_cli.errors import MtrlError
from mtrl_cli.runs.commits import Commit, read_history, rollback, standing
from mtrl_cli.runs.files import RecordFile


def commit(step: int, groups: dict[int, str], *, attempt: int = 1, state: str | None = None):
    return Commit(
        step, attempt, f"uri-a{attempt}-{step}", step, state, groups, {"name": f"s{step}"}
    )


def test_a_rollback_voids_the_later_commits_and_their_groups(tmp_path: Path) -> None:
    path = tmp_path / "commits.jsonl"
    file = RecordFile(path)
    for record in (
        commit(0, {}).to_record(),
        commit(1, {0: "trained", 1: "constant_reward"}, state="state-1").to_record(),
        commit(2, {2: "trained", 3: "trained"}).to_record(),
        rollback(1, attempt=2),
        commit(2, {2: "env_failure", 3: "trained"}, attempt=2, state="state-2").to_record(),
    ):
        file.append(record)
    file.close()
    with path.open("a") as torn:
        torn.write('{"kind":"commit","step":3,')

    history = read_history(path)

    assert [(c.step, c.attempt) for c in history.commits] == [(0, 1), (1, 1), (2, 2)]
    assert history.consumed == {
        0: "trained", 1: "constant_reward", 2: "env_failure", 3: "trained",
    }  # fmt: skip
    assert history.initial is not None
    assert history.initial.policy == "uri-a1-0"
    assert history.last_with_state is not None
    assert history.last_with_state.state == "state-2"
    assert history.up_to(1).last_with_state == history.at(1)
    assert history.at(3) is None


def test_going_back_before_the_first_step(tmp_path: Path) -> None:
    records = [commit(0, {}).to_record(), rollback(-1, 2), commit(0, {}, attempt=2).to_record()]
    assert [c.attempt for c in standing(records).commits] == [2]


def test_no_file_is_no_history(tmp_path: Path) -> None:
    history = read_history(tmp_path / "commits.jsonl")
    assert history.commits == ()
    assert history.last is history.initial is history.last_with_state is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"kind":"commit"}\n', "'step'"),
        ('{"torn\n{"kind":"rollback","to":0,"attempt":2}\n', "damaged"),
        ('{"kind":"other"}\n', "'other'"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "commits.jsonl"
    path.write_text(text)
    with pytest.raises(MtrlError, match=says):
        read_history(path)


def test_a_missing_step_is_damage() -> None:
    with pytest.raises(ValueError, match="step 2 follows step 0"):
        standing([commit(0, {}).to_record(), commit(2, {}).to_record()])
