"""Named policies on disk: a name is one path segment, is won once, and is never written again."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtrl_cli.errors import MtrlError, UsageError
from mtrl_cli.runs.policies import (
    check_name,
    list_policies,
    policy_names,
    read_policy,
    write_policy,
)

URI = "tinker://model_0123456789ab/sampler_weights/x"


def manifest(**facts: Any) -> dict[str, Any]:
    return {"format": 1, "uri": URI, "policy_step": 3, "time": 1.0, "server": {}, **facts}


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../x",
        "a/b",
        "/etc",
        "-x",
        ".x",
        "1e5",
        "a b",
        "a\n",
        "a\x00",
        "ä",
        "a@1",
        "a:b",
        "null",
        "Last",
        "none",
        "base",
        "x" * 129,
        "a//..",
        "tinker://x",
    ],
)
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="cannot name a policy"):
        check_name(name)


@given(st.text(max_size=12))
def test_no_name_leaves_the_folder(name: str) -> None:
    try:
        check_name(name)
    except UsageError:
        return
    path = Path("/runs/policies") / name
    assert path.parent == Path("/runs/policies")
    assert path.name == name
    assert name.isascii()


def test_a_name_is_never_given_twice(tmp_path: Path) -> None:
    made = write_policy(tmp_path, "first", manifest(), "a: 1\n")
    before = (made.path / "manifest.json").read_bytes()
    with pytest.raises(UsageError, match="'first' is given already"):
        write_policy(tmp_path, "first", manifest(uri="tinker://other"), "a: 2\n")
    assert (made.path / "manifest.json").read_bytes() == before
    assert sorted(path.name for path in (tmp_path / "policies").iterdir()) == ["first"]
    assert (tmp_path / "policies").stat().st_mode & 0o777 == 0o700


def test_of_many_at_once_one_wins(tmp_path: Path) -> None:
    def publish(number: int) -> bool:
        try:
            write_policy(tmp_path, "one", manifest(policy_step=number), f"n: {number}\n")
        except UsageError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = [number for number, ok in enumerate(pool.map(publish, range(24))) if ok]
    assert len(won) == 1
    policy = read_policy(tmp_path, "one")
    assert policy.policy_step == won[0]
    assert (policy.path / "config.yaml").read_text() == f"n: {won[0]}\n"
    assert policy_names(tmp_path) == ["one"]


def test_links_and_strangers_are_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "manifest.json").write_text(json.dumps(manifest()))
    runs = tmp_path / "runs"
    write_policy(runs, "good", manifest(), "")
    folder = runs / "policies"
    (folder / "linked").symlink_to(elsewhere)
    (folder / "halflinked").mkdir()
    (folder / "halflinked" / "manifest.json").symlink_to(elsewhere / "manifest.json")
    (folder / "file").write_text("")
    (folder / "empty").mkdir()
    assert policy_names(runs) == ["good"]
    with pytest.raises(UsageError, match="given already"):
        write_policy(runs, "linked", manifest(), "")
    assert sorted(path.name for path in elsewhere.iterdir()) == ["manifest.json"]

    other = tmp_path / "other"
    other.mkdir()
    (other / "policies").symlink_to(folder)
    assert policy_names(other) == []
    with pytest.raises(MtrlError, match="symbolic link"):
        write_policy(other, "second", manifest(), "")
    assert policy_names(runs) == ["good"]


def test_the_newest_come_first_and_damage_is_told(tmp_path: Path) -> None:
    for name, time in (("a", 2.0), ("b", 9.0), ("c", 5.0)):
        write_policy(tmp_path, name + "x", manifest(time=time), "")
    assert [policy.name for policy in list_policies(tmp_path)] == ["bx", "cx", "ax"]
    broken = tmp_path / "policies" / "ax" / "manifest.json"
    for text, told in (
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        (json.dumps(manifest(uri=3)), "uri is 3"),
        (json.dumps(manifest(format=2)), "newer mtrl"),
    ):
        broken.write_text(text)
        with pytest.raises(MtrlError, match=told):
            read_policy(tmp_path, "ax")
