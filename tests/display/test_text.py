"""Text and numbers for a terminal."""

import re
import sys
from unicodedata import category

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtrl_cli.display.text import (
    clock,
    compact,
    figure,
    gap,
    harmless,
    policy_name,
    reward,
    short_age,
    table,
)


@given(st.text())
def test_no_control_character_gets_through(text: str) -> None:
    shown = harmless(text)
    assert not any(ord(char) < 32 or 127 <= ord(char) < 160 for char in shown)
    shown.encode()  # no lone surrogate is left


def test_what_was_there_stays_visible() -> None:
    assert harmless("a\x1b[31mb\nc\u202ed") == "a\\x1b[31mb c\\u202ed"
    assert harmless("naïve 牌 🂡") == "naïve 牌 🂡"
    assert harmless("x" * 30, 5) == "xxxx…"


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0"), (950, "950"), (9100, "9.1k"), (123456, "123k"), (3.1e6, "3.1M"), (2e9, "2.0G")],
)
def test_counts(number: float, shown: str) -> None:
    assert compact(number) == shown


def test_durations() -> None:
    assert [clock(0), clock(3661), clock(360000)] == ["00:00:00", "01:01:01", "100:00:00"]
    told = [short_age(seconds) for seconds in (3, 720, 7200, 90 * 3600, 100 * 3600, 86_400 * 60)]
    assert told == ["3s", "12m", "2h", "90h", "4d", "60d"]


def test_policies() -> None:
    assert policy_name("tinker://run/weights/step-12") == "step-12"
    assert policy_name("base") == "base"


@pytest.mark.parametrize("value", [-0.00004, -0.0, 0.0, 0.00004])
def test_no_zero_has_a_sign(value: float) -> None:
    assert figure(value) == "0.0000"
    assert reward(value) == "0.000"


def test_figures() -> None:
    assert [figure(value) for value in (1.2345, 0.0123, 0.0046, -0.0046)] == [
        "1.234", "0.012", "0.0046", "-0.0046",
    ]  # fmt: skip
    assert [gap(value) for value in (3.14e-6, 0.0213, 2.5, 0.0)] == ["3.1e-06", "0.021", "2.5", "0"]


def test_a_table_goes_on_below_its_cells_where_it_is_too_wide() -> None:
    rows = [("run", "task", "ends"), ("a7aa", "a-name-of-many-words", "done 4, no answer 12")]
    assert [*table(rows)] == [*table(rows, 80)]
    assert [*table(rows, 36, cut=[1])] == [
        "run   task       ends",
        "a7aa  a-name-o…  done 4, no answer",
        "                 12",
    ]
    assert [*table(rows, 22, cut=[1])] == [*table(rows)]  # "answer" and "a-name-o…" need 23


def test_wide_characters_keep_the_columns_of_a_table() -> None:
    rows = [("任务 一", "a"), ("b", "c")]
    assert [*table(rows)] == ["任务 一  a", "b        c"]
    assert [*table([("task", "a"), ("任务" * 9, "b")], 14, cut=[0])][1] == "任务任务任…  b"


def test_nothing_that_acts_or_hides_reaches_a_terminal() -> None:
    """All of Unicode: what remains can be read; a space of any width, a new emoji and a letter of
    one's own stay as they are."""
    hidden = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    for character in map(chr, range(sys.maxunicode + 1)):
        shown = harmless(character)
        if category(character) in hidden:
            assert shown == " " or re.fullmatch(r"\\(x[0-9a-f]{2}|u[0-9a-f]{4,6})", shown)
        else:
            assert shown == character
