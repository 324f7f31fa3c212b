"""A package's ``__init__`` runs when one of its own names is used, and not before."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from mtrl_cli.light_import import light_packages


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    inner = tmp_path / "heavy_outer" / "inner"
    inner.mkdir(parents=True)
    (inner.parent / "__init__.py").write_text(
        "__all__ = ['NAME', 'part']\nfrom . import part\nNAME = part.VALUE\n"
    )
    (inner.parent / "part.py").write_text("VALUE = 5\n")
    (inner / "__init__.py").write_text("from .leaf import LEAF\nLOADED = True\n")
    (inner / "leaf.py").write_text("LEAF = 'leaf'\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "heavy_outer"
    for name in [name for name in sys.modules if name.startswith("heavy_outer")]:
        del sys.modules[name]


def test_a_submodule_does_not_run_its_packages(package: str) -> None:
    light_packages(package, f"{package}.inner")
    leaf = importlib.import_module(f"{package}.inner.leaf")
    assert leaf.LEAF == "leaf"
    assert "LOADED" not in vars(sys.modules[f"{package}.inner"])
    assert f"{package}.part" not in sys.modules


def test_using_a_name_of_the_package_runs_it_once(package: str) -> None:
    light_packages(package, f"{package}.inner")
    leaf = importlib.import_module(f"{package}.inner.leaf")
    inner = importlib.import_module(f"{package}.inner")
    assert inner.LOADED
    assert inner.leaf is leaf
    assert type(inner) is ModuleType
    scope: dict[str, object] = {}
    exec(f"from {package} import *", scope)
    assert scope["NAME"] == 5
    with pytest.raises(AttributeError):
        _ = importlib.import_module(package).missing


def test_an_error_in_the_package_is_raised_each_time(package: str, tmp_path: Path) -> None:
    (tmp_path / package / "__init__.py").write_text("raise OSError('no')\n")
    light_packages(package)
    for _ in range(2):
        with pytest.raises(OSError, match="no"):
            _ = sys.modules[package].NAME


def test_a_loaded_or_missing_package_is_left_alone(package: str) -> None:
    loaded = importlib.import_module(package)
    light_packages(package, "no_such_package_anywhere")
    assert sys.modules[package] is loaded
    assert "no_such_package_anywhere" not in sys.modules
