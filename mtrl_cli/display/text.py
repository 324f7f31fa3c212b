"""Text for a terminal: foreign text made harmless, numbers made short.

Whatever a model, an environment or a server wrote may hold control characters that move the
cursor, set the window's title or hide text. Every such string passes through `harmless`.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from unicodedata import category

from mtrl_cli.display.wrapping import cells, wrapped

_HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Unicode's categories of what acts or hides instead of being read: controls (an escape sequence
begins with one), formats (bidirectional, invisible, tags), surrogates, which cannot be encoded,
and separators of lines and paragraphs."""

_BETWEEN = "  "
"""Between two columns of a table."""

_SHORTEST = 9
"""Characters of a name that a table does not cut away."""

_RUN_ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{4,}")


def harmless(text: str, limit: int | None = None) -> str:
    """``text`` in one line, control characters written out, at most ``limit`` characters."""
    if limit is not None and len(text) > limit:
        text = text[: limit - 1] + "…"
    if text.isprintable():
        return text
    return "".join(_written_out(one) if category(one) in _HIDDEN else one for one in text)


def _written_out(character: str) -> str:
    code = ord(character)
    if character in "\n\t\r":
        return " "
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def compact(number: float) -> str:
    """A count in few characters: 950, 9.1k, 3.1M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            scaled = number / size
            return f"{scaled:.1f}{unit}" if scaled < 100 else f"{scaled:.0f}{unit}"
    return f"{number:.0f}"


def clock(seconds: float) -> str:
    """A duration as HH:MM:SS."""
    minutes, second = divmod(int(seconds), 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour:02d}:{minute:02d}:{second:02d}"


def short_age(seconds: float) -> str:
    """A duration in at most four characters: 41s, 12m, 3h, 20d."""
    if seconds < 100:
        return f"{seconds:.0f}s"
    if seconds < 6000:
        return f"{seconds / 60:.0f}m"
    return f"{seconds / 3600:.0f}h" if seconds < 360_000 else f"{seconds / 86_400:.0f}d"


def reward(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:z.{digits}f}"


def figure(value: float) -> str:
    """A number near 1 in few characters, and never a zero with a sign."""
    return f"{value:z.4f}" if abs(value) < 0.01 else f"{value:.3f}"


def fitted(value: float, width: int, digits: int) -> str:
    """A number with as many of ``digits`` decimals as ``width`` characters have room for."""
    for shown in range(digits, 0, -1):
        if len(text := f"{value:z.{shown}f}") <= width:
            return text
    return f"{value:z.0f}"


def gap(value: float) -> str:
    """A difference that may be of any size: 3.1e-06, 0.021."""
    return f"{value:.2g}"


def policy_name(uri: str) -> str:
    """The part of a policy's URI that tells policies of one run apart."""
    return uri.rstrip("/").rpartition("/")[2] or uri


def run_tail(run: str) -> str:
    """The last part of a run's id, which names it among the runs of its folder; a name that is no
    id is whole."""
    return run.rpartition("-")[2] if _RUN_ID.fullmatch(run) else run


def table(
    rows: Sequence[Sequence[str]], width: int | None = None, cut: Sequence[int] = ()
) -> Iterator[str]:
    """The lines of a table whose columns are as wide as their widest cell.

    Where that is more than ``width``, names in the columns ``cut`` end in …, and other cells go on
    below themselves, the last columns first: no word, id or number is broken. A table that does
    not fit even so is left to the terminal.
    """
    widths = [max(map(cells, column)) for column in zip(*rows, strict=True)]
    if width is not None:
        widths = _squeezed(rows, widths, width, cut)
    for row in rows:
        told = [
            [_shortened(cell, room)] if number in cut else wrapped(cell, room)
            for number, (cell, room) in enumerate(zip(row, widths, strict=True))
        ]
        for line in zip_longest(*told, fillvalue=""):
            padded = (
                cell + " " * (room - cells(cell)) for cell, room in zip(line, widths, strict=True)
            )
            yield _BETWEEN.join(padded).rstrip()


def _shortened(cell: str, room: int) -> str:
    if cells(cell) <= room:
        return cell
    while cells(cell) >= room:
        cell = cell[:-1]
    return f"{cell}…"


def _squeezed(
    rows: Sequence[Sequence[str]], widths: list[int], width: int, cut: Sequence[int]
) -> list[int]:
    """The widths of columns at which a table is ``width`` wide; ``widths`` where it cannot be."""
    squeezed = list(widths)
    over = sum(widths) + len(_BETWEEN) * (len(widths) - 1) - width
    others = [number for number in reversed(range(len(widths))) if number not in cut]
    for number in (*cut, *others):
        words = (cells(word) for row in rows for word in row[number].split(" "))
        least = max(_SHORTEST, cells(rows[0][number])) if number in cut else max(words)
        spare = min(max(over, 0), max(widths[number] - least, 0))
        squeezed[number] -= spare
        over -= spare
    return widths if over > 0 else squeezed


def no_sign_of_life(seconds: float, stopped: bool, pid: int) -> str:
    """Of a process that is there; see `runs.liveness.silence`."""
    if stopped:
        return f"it is stopped, by Ctrl-Z or SIGSTOP: fg, or kill -CONT {pid}, lets it go on"
    return f"no sign of life for {seconds:.0f} s: it is frozen, or code in it keeps Python's lock"


def run_dir_override(runs: str) -> str:
    """``run.dir=…`` as a shell takes it, and behind the shell the grammar of overrides: there a
    name of other than letters, digits and ``._/-`` is quoted, what looks like an interpolation is
    escaped, and backslashes are doubled before either."""
    name = "./???" if runs == "???" else runs  # which means that a value is missing
    if not _PLAIN.fullmatch(name):
        name = re.sub(r"(\\*)\$\{", r"\1\1\\${", name)
        name = re.sub(r'(\\*)("|\Z)', lambda at: at[1] * 2 + at[2].replace('"', '\\"'), name)
        name = f'"{name}"'
    return shlex.quote(f"run.dir={name}")


_PLAIN = re.compile(
    r"\.|[\w./-]*/[\w./-]*|(?!(?:null|true|false|nan|inf)$)[a-z_][\w-]*", re.ASCII | re.I
)
"""What the grammar reads as text, and as the same."""
