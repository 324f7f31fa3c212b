"""Printed commands are read by a shell, and their overrides by the grammar behind it."""

import shlex

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from mtrl_cli.config.overrides import check
from mtrl_cli.display.text import run_dir_override

ODD = "ab/. '\",=[]{}()$\\:;*?~!&|<>#%@+-_0é"


def read(printed: str) -> str:
    """The folder that a printed override names."""
    (argument,) = shlex.split(printed)
    checked = check(argument, ())
    assert checked.key == "run.dir"
    from hydra.core.override_parser.overrides_parser import OverridesParser

    (override,) = OverridesParser.create().parse_overrides([checked.hydra])
    assert not override.is_sweep_override()
    return str(OmegaConf.create({"dir": override.value()}).dir)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.text(st.sampled_from(ODD), min_size=1, max_size=12))
@example("it's")
@example("a,b")
@example("lr=1[2]")
@example("null")
@example("1e3")
@example("007")
@example("${seed}")
@example("\\${seed}")
@example('\\"')
@example("a\\")
@example("???")
def test_a_folder_of_any_name_is_named_by_its_override(folder: str) -> None:
    named = "./???" if folder == "???" else folder
    assert read(run_dir_override(folder)) == named


@pytest.mark.parametrize("folder", [".", "/data", "my-runs", "../x/runs.d", "/a/_b"])
def test_a_plain_name_stays_plain(folder: str) -> None:
    assert run_dir_override(folder) == f"run.dir={folder}"
    assert read(run_dir_override(folder)) == folder
