"""Nasty values for every key: what is composed can be planned, and what cannot be is told in
lines that name the key, with exit code 2. Never a traceback.

Hydra composes once; each value is then merged, judged and planned as the command does it.
"""

import copy
import io
import random
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mtrl_cli.cli.running.experiment import Asked, show_plan
from mtrl_cli.config import compose as composing
from mtrl_cli.config.keys import schema_keys
from mtrl_cli.config.overrides import check
from mtrl_cli.config.rules.validate import BOUNDS, EMBEDDED_WINDOW
from mtrl_cli.errors import MtrlError
from mtrl_cli.local.engine.types import Shape

KEYS = sorted(key for key, kind in schema_keys().items() if kind != "section")
NUMBERS = [
    "1e300", "-1", "1e-300", "nan", "inf", "-inf", "1" + "0" * 400, "9" * 5000, "1e18", "1.5",
    "9223372036854775808", "true", "0", "-0.0", "1_0", "0x1F",
]  # fmt: skip
TEXTS = [
    "", "''", "'\\x00'", "\x1b[2J", "é" * 300, "${oc.env:NO_SUCH}", "${nope}", "${seed}", "${.x}",
    "${server}", "${oc.create:{a:1}}", "${oc.decode:x}", "a" * 50_000, "\ud800", "..", "/dev/null",
    "x.py:Y", "os:system", "http://[::1", "http://u:pw@h", "http://h:0", "{a:{b:1}}", "[1,2]", "[",
    "null", "~", "???", "a b", "=", "[[[[[[[[1]]]]]]]]", "glob(*)", "range(1,9)", "(" * 500,
]  # fmt: skip


@pytest.fixture(scope="module")
def base() -> composing.Composed:
    return composing.compose(None, [])


def meet(base: composing.Composed, key: str, value: str, command: str, as_json: bool) -> None:
    argument = f"{key}={value}"
    said = io.StringIO()
    refused: MtrlError | None = None
    try:
        with redirect_stdout(said), redirect_stderr(said):
            override = check(argument, base.dirs)
            parsed = OverridesParser.create().parse_overrides([argument])[0].value()
            container = copy.deepcopy(base.container)
            node = container
            *sections, last = key.split(".")
            for section in sections:
                node = node.setdefault(section, {})
            node[last] = parsed
            sources = replace(base.sources, overrides=(override,))
            composed = composing._typed("blackjack", container, sources)
            show_plan(Asked(command, [], groups=1), composed, as_json)
            assert composed.yaml
    except MtrlError as error:
        refused = error
    assert "\x1b" not in said.getvalue()
    if refused is not None:
        assert refused.exit_code == 2
        assert max(map(len, str(refused).splitlines())) < 60_000
        assert key.rpartition(".")[2] in f"{refused} {getattr(refused, 'at', '')}"


def test_a_fixed_sample(base: composing.Composed) -> None:
    draw = random.Random(8)
    for value in draw.sample([*NUMBERS, *TEXTS], 20):
        meet(base, draw.choice(KEYS), value, "train", as_json=False)


@pytest.mark.parametrize("key", ["eval.games", "run.concurrency", "train.steps", "seed"])
def test_an_integer_of_any_length(base: composing.Composed, key: str) -> None:
    for digits in (30, 400, 5000):
        argument = f"{key}=1{'0' * digits}"
        if digits == 5000:
            with pytest.raises(MtrlError, match="cannot read this override"):
                check(argument, base.dirs)
            continue
        meet(base, key, argument.partition("=")[2], "train", as_json=True)


def test_a_section_that_is_one_interpolation(base: composing.Composed) -> None:
    for key in ("env.headers", "env.params", "train.loss_config"):
        meet(base, key, "${oc.env:NO_SUCH}", "train", as_json=False)


def test_the_window_of_the_embedded_model() -> None:
    assert {"mtrl-tiny": Shape(vocab=1).context} == EMBEDDED_WINDOW
    assert BOUNDS["train.eps"].holds(1e-8)
    assert not BOUNDS["train.eps"].holds(1e-300)  # 0 in single precision


@pytest.mark.long
@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
@given(
    key=st.sampled_from(KEYS),
    value=st.one_of(st.sampled_from([*NUMBERS, *TEXTS]), st.text(max_size=30)),
    command=st.sampled_from(["train", "rollout"]),
    as_json=st.booleans(),
)
def test_many(base: composing.Composed, key: str, value: str, command: str, as_json: bool) -> None:
    meet(base, key, value, command, as_json)
