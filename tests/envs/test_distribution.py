"""Two distributions that own one import package are noticed, with what to do."""

import sys
from pathlib import Path

import pytest

from mtrl_cli.envs import distribution


def install(site: Path, name: str, version: str, size: int) -> None:
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text(f"openenv/core/client.py,sha256=x,{size}\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "openenv/core").mkdir(parents=True)
    (tmp_path / "openenv/core/client.py").write_text("x" * 20)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


def test_one_distribution_is_no_warning(site: Path) -> None:
    install(site, "openenv-core", "0.3.0", 20)
    assert distribution.installed() == {"openenv-core": "0.3.0"}
    assert distribution.warning() is None


@pytest.mark.parametrize(
    ("old", "new", "winner", "state"),
    [
        (20, 30, "openenv-core", "the files of openenv-core are in place"),
        (10, 20, "openenv", "the files of openenv are in place"),
        (20, 20, "openenv", "which of their files are in place is unclear"),
    ],
)
def test_both_are_named_with_the_one_whose_files_won(
    site: Path, old: int, new: int, winner: str, state: str
) -> None:
    install(site, "openenv-core", "0.3.0", old)
    install(site, "openenv", "0.10.0", new)
    line = distribution.warning()
    assert line is not None
    assert "\n" not in line
    assert line.startswith("openenv 0.10.0 and openenv-core 0.3.0 are both installed")
    assert state in line
    assert line.endswith(f"python -m pip install --no-deps {winner}")


def test_two_folders_are_told_apart_by_what_an_import_finds(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = site / "first"
    (first / "openenv/core").mkdir(parents=True)
    (first / "openenv/core/client.py").write_text("x" * 30)
    monkeypatch.setattr(sys, "path", [str(first), str(site)])
    install(first, "openenv", "0.10.0", 30)
    install(site, "openenv-core", "0.3.0", 20)
    assert "the files of openenv are in place" in (distribution.warning() or "")
