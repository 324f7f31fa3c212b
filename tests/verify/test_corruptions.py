"""What is wrong is found, at the right place: one damage at a time, done by hand to a real run.

The trajectories' damages are done twice: as a flipped bit would do it, and as somebody would who
makes the digests right again. Of the second kind, what breaks a rule is found by that rule.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mtrl_cli.runs.trajectories import sealed
from tests.verify.runs import findings, lines, step_file, text_of, write_lines, write_text

Record = dict[str, Any]
Edit = Callable[[Record], None]
STEP = 2
LINE = 2
"""The damaged line of the damaged step: member 1 of the first group, two turns long."""


# --- one line of a trajectory file ----------------------------------------------------------


def span(record: Record, kind: str) -> tuple[int, int]:
    return next((start, end) for found, start, end in record["spans"] if found == kind)


def flip_a_prompt_id(record: Record) -> None:
    record["tokens"][span(record, "prompt")[0] + 1] ^= 1


def flip_a_sampled_id(record: Record) -> None:
    record["tokens"][span(record, "sampled")[0] + 3] ^= 1


def flip_a_bridge_id(record: Record) -> None:
    record["tokens"][span(record, "bridge")[0] + 1] ^= 1


def drop_a_logprob(record: Record) -> None:
    del record["logprobs"][3]


def shift_the_logprobs(record: Record) -> None:
    first = record["logprobs"].pop(0)
    record["logprobs"].append(first)


def raise_a_logprob(record: Record) -> None:
    record["logprobs"][5] = 0.25


def raise_a_logprob_beyond_every_float(record: Record) -> None:
    record["logprobs"][5] = 10**400


def raise_the_reward_beyond_every_float(record: Record) -> None:
    record["reward"] = 10**400


def edit_the_reward(record: Record) -> None:
    record["reward"] += 1.0


def edit_the_calls_too(record: Record) -> None:
    record["reward"] = record["turns"][-1]["calls"][-1]["reward"] = 0.0
    record["turns"][0]["calls"][0]["reward"] = 0.0


def move_a_span(record: Record) -> None:
    record["spans"][1][2] -= 1
    record["spans"][2][1] -= 1


def open_a_gap(record: Record) -> None:
    record["spans"][2][1] += 1


def mix_the_policy(record: Record) -> None:
    record["policy"] = record["policy"].replace("step-000001", "step-000000")


def take_another_task(record: Record) -> None:
    record["task"]["id"] += "0"


def take_another_member(record: Record) -> None:
    record["member"] = 0


def take_another_run(record: Record) -> None:
    record["run"] = "20260101-000000-0000"


def play_after_done(record: Record) -> None:
    record["turns"][0]["calls"][0]["done"] = True


def invent_a_stop(record: Record) -> None:
    record["stop"] = "stopped"


def fail_with_a_reward(record: Record) -> None:
    record["stop"] = "timeout"


def write_a_text(record: Record) -> None:
    record["spans"] = "[]"


EDITS: list[tuple[Edit, str]] = [
    (flip_a_prompt_id, r"token 1 \(prompt\) is not what the template makes of its messages"),
    (flip_a_sampled_id, r"tokens \d+ to \d+ do not read as their turn was recorded"),
    (
        flip_a_bridge_id,
        r"token \d+ \(bridge\) is not what the template makes of the calls' answers",
    ),
    (drop_a_logprob, r"(\d+) sampled tokens have (?!\1)\d+ logprobs"),
    (raise_a_logprob, r"logprob 5 is 0.25, not finite and ≤ 0"),
    (raise_a_logprob_beyond_every_float, r"logprobs\[5\] is 10{36}"),
    (raise_the_reward_beyond_every_float, r"reward is 10{36}"),
    (edit_the_reward, r"its reward is [\d.]+, but its calls earned [\d.]+"),
    (move_a_span, r"turns of \[.*\] tokens were recorded, sampled spans have"),
    (open_a_gap, r"a span ends at \d+, and the next one starts at \d+"),
    (mix_the_policy, r"policy .*step-000000 .*admitted under .*step-000001"),
    (take_another_task, r"task counted/\d+, another member has counted/\d+"),
    (take_another_member, r"member 0 is there more than once|member 1 is missing|refill 0 stands"),
    (take_another_run, r"it belongs to the run '20260101-000000-0000'"),
    (play_after_done, r"the environment was called after it had said done"),
    (invent_a_stop, r"stop is 'stopped', which is none of mtrl's"),
    (fail_with_a_reward, r"it failed \(timeout\) and yet has the reward"),
    (write_a_text, r"spans is '\[\]'"),
]


def damaged(folder: Path, edit: Edit, *, step: int = STEP, line: int = LINE) -> list[bytes]:
    """The file's lines, one of them edited under its old seal."""
    texts = text_of(folder, step_file(step)).splitlines(keepends=True)
    record = json.loads(texts[line - 1])
    edit(record)
    texts[line - 1] = json.dumps(record, separators=(",", ":")).encode() + b"\n"
    return texts


@pytest.mark.parametrize("edit", [*(e for e, _ in EDITS), shift_the_logprobs, edit_the_calls_too])
def test_any_change_of_a_line_is_found_by_its_seal(copy: Path, edit: Edit) -> None:
    write_text(copy, step_file(STEP), b"".join(damaged(copy, edit)))
    found = findings(copy, text=False)
    assert (step_file(STEP), LINE) in [(f.file, f.line) for f in found]
    assert any("is not as it was written" in f.what for f in found)


@pytest.mark.parametrize(("edit", "told"), EDITS, ids=[edit.__name__ for edit, _ in EDITS])
def test_what_breaks_a_rule_is_found_by_that_rule(copy: Path, edit: Edit, told: str) -> None:
    forge(copy, STEP, damaged(copy, edit))
    found = [f for f in findings(copy) if f.file == step_file(STEP)]
    assert found
    assert LINE in {f.line for f in found} or edit is take_another_member
    assert any(re.search(told, f.what) for f in found), found


def test_the_first_sampled_turn_that_is_longer_than_its_budget(copy: Path) -> None:
    text = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(re.sub("turn_tokens: .*", "turn_tokens: 10", text))
    found = findings(copy)
    assert (found[0].file, found[0].line) == (step_file(1), 1)
    assert "but budget.turn_tokens is 10" in found[0].what


def forge(folder: Path, step: int, texts: list[bytes]) -> None:
    """Write lines with seals and digest made right."""
    records = [json.loads(text) for text in texts]
    for record in records:
        record.pop("sha256", None)
    text = b"".join(sealed(json.dumps(record, separators=(",", ":"))) for record in records)
    write_text(folder, step_file(step), text)
    commits = lines(folder, "commits.jsonl")
    for commit in commits:
        if commit["kind"] == "commit" and commit["step"] == step:
            commit["trajectories"] = hashlib.sha256(text).hexdigest()
    write_lines(folder, "commits.jsonl", commits)


# --- whole files ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Damage:
    """What is done to the folder, and the finding that must come of it."""

    do: Callable[[Path], None]
    file: str
    line: int | None
    told: str


def edited(name: str, edit: Callable[[list[Record]], None]) -> Callable[[Path], None]:
    def do(folder: Path) -> None:
        records = lines(folder, name)
        edit(records)
        write_lines(folder, name, records)

    return do


def without(name: str, number: int) -> Callable[[Path], None]:
    return edited(name, lambda records: records.pop(number - 1) and None)


def setting(name: str, number: int, **values: Any) -> Callable[[Path], None]:
    return edited(name, lambda records: records[number - 1].update(values))


def first(folder: Path, name: str, **wanted: Any) -> int:
    """The number of the first line with these values."""
    return next(
        number
        for number, record in enumerate(lines(folder, name), 1)
        if all(record.get(key) == value for key, value in wanted.items())
    )


def swap_the_files(folder: Path) -> None:
    a, b, aside = folder / step_file(1), folder / step_file(2), folder / "aside"
    a.rename(aside)
    b.rename(a)
    aside.rename(b)


def tear_a_middle_line(folder: Path) -> None:
    path = folder / "ledger.jsonl"
    texts = path.read_text().splitlines(keepends=True)
    texts[11] = texts[11][:40] + "\n"
    path.write_text("".join(texts))


def truncate(folder: Path) -> None:
    path = folder / step_file(1)
    path.write_bytes(path.read_bytes()[:-20])


def flip_in_the_gzip(folder: Path) -> None:
    path = folder / step_file(1)
    data = bytearray(path.read_bytes())
    data[-6] ^= 1  # its checksum
    path.write_bytes(bytes(data))


def a_pipe(name: str) -> Callable[[Path], None]:
    """A pipe that nobody writes to, which an open() would wait for."""

    def do(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return do


def drop_the_lines_of_a_group(folder: Path) -> None:
    texts = text_of(folder, step_file(1)).splitlines(keepends=True)
    forge(folder, 1, [text for text in texts if json.loads(text)["group"] != 1])


def double_a_group(folder: Path) -> None:
    texts = text_of(folder, step_file(1)).splitlines(keepends=True)
    forge(folder, 1, [*texts, *(text for text in texts if json.loads(text)["group"] == 1)])


def a_step_without_gradients(folder: Path) -> None:
    records = lines(folder, "ledger.jsonl")
    gone = {r["key"] for r in records if r.get("kind") == "forward_backward" and r["seq"] == 2}
    write_lines(folder, "ledger.jsonl", [r for r in records if r["key"] not in gone])


COMMITS, GROUPS, LEDGER = "commits.jsonl", "groups.jsonl", "ledger.jsonl"
# Lines of commits.jsonl: 0, 1, 2 (state), 3, rollback to 2, 3, 4.
DAMAGES: dict[str, Damage] = {
    "a commit in the middle is gone": Damage(
        without(COMMITS, 2), COMMITS, 2, r"step 2 follows step 0: a commit is missing"
    ),
    "the last commit is gone": Damage(
        without(COMMITS, 7), "run.json", None, r"step is 4, the commits that stand end at 3"
    ),
    "the rollback is gone": Damage(
        without(COMMITS, 5), COMMITS, 5, r"step 3 follows step 3 without a rollback"
    ),
    "a rollback to a step without a state": Damage(
        setting(COMMITS, 5, to=1), COMMITS, 5, r"goes back to step 1, which has no training state"
    ),
    "an attempt goes backwards": Damage(
        setting(COMMITS, 7, attempt=1), COMMITS, 7, r"attempt 1 after attempt 2"
    ),
    "a commit is there twice": Damage(
        edited(COMMITS, lambda r: r.append(r[-1])), COMMITS, 8, r"step 4 follows step 4 without"
    ),
    "a group is consumed twice": Damage(
        setting(COMMITS, 3, groups={"0": "trained", "3": "trained"}), COMMITS, 3,
        r"group 0 was consumed by step 1 already",
    ),
    "a group is missing": Damage(
        setting(COMMITS, 3, groups={"2": "trained"}), COMMITS, 3, r"consumes 1 groups, not 2"
    ),
    "a group is left behind": Damage(
        setting(COMMITS, 3, groups={"2": "trained", "9": "trained"}), COMMITS, 7,
        r"up to step 4 no step consumed: 3",
    ),
    "an outcome was edited": Damage(
        setting(COMMITS, 3, groups={"2": "constant_reward", "3": "trained"}), COMMITS, 3,
        r"group 2 was consumed as 'constant_reward', but groups.jsonl:\d+ ended as 'trained'",
    ),
    "a policy that was never published": Damage(
        edited(COMMITS, lambda r: r[1].update(policy=r[1]["policy"] + "0")), COMMITS, 2,
        r"was not published by attempt 1",
    ),
    "a state that was never saved": Damage(
        edited(COMMITS, lambda r: r[2].update(state=r[2]["state"] + "0")), COMMITS, 3,
        r"was not saved by attempt 1",
    ),
    "a snapshot's name of another attempt": Damage(
        edited(COMMITS, lambda r: r[6]["snapshot"].update(
            name=r[6]["snapshot"]["name"].replace("/a2/", "/a1/"))), COMMITS, 7,
        r"its snapshot is called .*/a1/step-000004, and should be .*/a2/step-000004",
    ),
    "the policy changes without a step": Damage(
        setting(COMMITS, 7, policy_step=3), COMMITS, 7, r"policy"
    ),
    "a damaged middle line": Damage(tear_a_middle_line, LEDGER, 12, r"is not a JSON object"),
    "an admission is gone": Damage(
        without(GROUPS, 2), GROUPS, 5, r"group 1 ends as 'trained' and was not admitted"
    ),
    "an outcome of a group is gone": Damage(
        without(GROUPS, 5), COMMITS, 2, r"group 0 was consumed as 'trained', but .* ended as None"
    ),
    "a group of another policy": Damage(
        edited(GROUPS, lambda r: r[0].update(policy="scripted://other")), GROUPS, 1,
        r"group 0: policy scripted://other .* is none of attempt 1",
    ),
    "a group of another task": Damage(
        setting(GROUPS, 1, task="counted/1"), GROUPS, 1, r"its id stands for counted/\d+"
    ),
    "a group is admitted twice": Damage(
        edited(GROUPS, lambda r: r.insert(1, r[0])), GROUPS, 2, r"group 0 is admitted twice"
    ),
    "two files changed places": Damage(
        swap_the_files, step_file(1), None, r"group 0 was consumed and is not in the file"
    ),
    "a file is cut short": Damage(truncate, step_file(1), None, r"cut short|cannot be read"),
    "a flipped bit in the gzip": Damage(flip_in_the_gzip, step_file(1), None, r"CRC check failed"),
    "a pipe for the configuration": Damage(
        a_pipe("config.yaml"), "config.yaml", None, r"cannot be read: it is not a file"
    ),
    "a pipe for a file": Damage(
        a_pipe(step_file(1)), step_file(1), None, r"is missing"
    ),
    "a pipe for the groups": Damage(
        a_pipe(GROUPS), GROUPS, None, r"cannot be read: it is not a file"
    ),
    "a file is gone": Damage(
        lambda folder: (folder / step_file(4)).unlink(), step_file(4), None, r"is missing"
    ),
    "a group's trajectories are gone": Damage(
        drop_the_lines_of_a_group, step_file(1), None, r"group 1 was consumed and is not in"
    ),
    "a group's trajectories are doubled": Damage(
        double_a_group, step_file(1), None, r"member \d is there more than once|refill"
    ),
    "a metrics line is there twice": Damage(
        edited("metrics.jsonl", lambda r: r.insert(1, r[0])), "metrics.jsonl", 2,
        r"step 1 of attempt 1 is there twice",
    ),
    "a metrics line is gone": Damage(
        without("metrics.jsonl", 1), "metrics.jsonl", None, r"step 1 of attempt 1 has no line"
    ),
    "a figure is no number": Damage(
        setting("metrics.jsonl", 1, loss=None), "metrics.jsonl", 1, r"loss is None"
    ),
    "a figure is beyond every float": Damage(
        setting("metrics.jsonl", 1, loss=10**400), "metrics.jsonl", 1, r"loss is 10{400}, not"
    ),
    "an optimizer step without gradients": Damage(
        a_step_without_gradients, LEDGER, None, r"optim_step/3 steps without a forward_backward"
    ),
    "the configuration is no YAML": Damage(
        lambda folder: (folder / "config.yaml").write_text("a: [") and None, "config.yaml", None,
        r"is not YAML",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damage_is_found_where_it_is(copy: Path, name: str) -> None:
    damage = DAMAGES[name]
    damage.do(copy)
    found = findings(copy, text="config" not in name)
    assert any(
        f.file == damage.file and damage.line in (None, f.line) and re.search(damage.told, f.what)
        for f in found
    ), [str(f) for f in found]


# --- the ledger, entry by entry --------------------------------------------------------------


def numbers(folder: Path, state: str) -> list[tuple[int, str]]:
    """Line number and key of every training call's line of this state."""
    return [
        (number, record["key"])
        for number, record in enumerate(lines(folder, LEDGER), 1)
        if record["entry"] == "call" and record["state"] == state
    ]


@pytest.mark.parametrize("state", ["intent", "accepted", "done"])
def test_any_line_of_a_training_call_is_missed(copy: Path, state: str) -> None:
    whole = (copy / LEDGER).read_bytes()
    for number, key in numbers(copy, state):
        without(LEDGER, number)(copy)
        assert any(f.file == LEDGER and key in f.what for f in findings(copy, text=False)), key
        (copy / LEDGER).write_bytes(whole)


@pytest.mark.parametrize("state", ["accepted", "done"])
def test_any_line_of_a_training_call_that_is_there_twice_is_found(copy: Path, state: str) -> None:
    whole = (copy / LEDGER).read_bytes()
    for number, key in numbers(copy, state):
        edited(LEDGER, lambda r, at=number: r.insert(at, r[at - 1]))(copy)
        [line] = {f.line for f in findings(copy, text=False) if f"{key}: " in f.what}
        assert line == number + 1
        (copy / LEDGER).write_bytes(whole)


def test_a_call_after_an_unknown_one_is_found(copy: Path) -> None:
    number = first(copy, LEDGER, key="a1/optim_step/3", state="done")
    setting(LEDGER, number, state="unknown")(copy)
    found = [f for f in findings(copy) if f.file == LEDGER]
    assert "follows a1/optim_step/3, which is unknown" in found[0].what
    assert lines(copy, LEDGER)[found[0].line - 1]["key"].startswith("a1/publish/")


def test_a_digest_that_is_none_is_found(copy: Path) -> None:
    number = first(copy, LEDGER, kind="forward_backward")
    setting(LEDGER, number, digest="abc")(copy)
    [found] = findings(copy)
    assert (found.file, found.line) == (LEDGER, number)


def test_a_borrow_that_was_never_returned_is_found(copy: Path) -> None:
    records = lines(copy, LEDGER)
    at = max(
        n for n, r in enumerate(records) if r["entry"] == "borrow" and r["state"] == "released"
    )
    key = records.pop(at)["key"]
    write_lines(copy, LEDGER, records)
    [found] = findings(copy)
    assert found.file == LEDGER
    assert f"{key} was never returned" in found.what
