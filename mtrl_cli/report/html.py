"""Small pieces of HTML. Whatever text goes in is escaped here; callers pass plain text."""

from collections.abc import Iterable, Sequence
from html import escape

from mtrl_cli.display.text import harmless


def text(value: object) -> str:
    """``value`` as text in a page: escaped, control characters written out."""
    return escape(harmless(str(value)))


def table(
    heads: Sequence[str], rows: Iterable[Sequence[object]], numbers: Sequence[int] = ()
) -> str:
    """A table; the columns of ``numbers`` are aligned to the right. A cell may have lines."""

    def cells(tag: str, row: Sequence[object]) -> str:
        return "".join(
            f"<{tag}{' class=n' if index in numbers else ''}>{_lines(cell)}</{tag}>"
            for index, cell in enumerate(row)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table><thead><tr>{cells("th", heads)}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _lines(cell: object) -> str:
    return "<br>".join(text(line) for line in str(cell).split("\n"))


def bars(rows: Sequence[tuple[str, float, Sequence[str], str]]) -> str:
    """Horizontal bars: name, size, the size as told in one or more columns, a note."""
    most = max((size for _, size, _, _ in rows), default=0.0) or 1.0
    lines = "".join(
        f"<tr><td>{text(name)}</td>{''.join(f'<td class=n>{text(cell)}</td>' for cell in told)}"
        f'<td><div class="bar">'
        f'<i style="width:{100 * size / most:.1f}%"></i></div></td>'
        f'<td class="soft">{text(note)}</td></tr>'
        for name, size, told, note in rows
    )
    return f"<table>{lines}</table>"


def section(heading: str, note: str, *parts: str) -> str:
    """A section of the page; nothing where none of its parts has anything."""
    body = "".join(parts)
    if not body:
        return ""
    told = f'<p class="soft">{text(note)}</p>' if note else ""
    return f"<section><h2>{text(heading)}</h2>{told}{body}</section>"


def folded(summary: str, body: str) -> str:
    """What is shown when it is asked for; nothing where there is nothing."""
    return f"<details><summary>{text(summary)}</summary>{body}</details>" if body else ""


def legend(keys: Sequence[tuple[str, str]]) -> str:
    """What each line is: its drawing, which is HTML, and its name; nothing for a single one."""
    if len(keys) < 2:
        return ""
    shown = "".join(f'<span class="key">{drawn}{text(name)}</span>' for drawn, name in keys)
    return f"<p>{shown}</p>"
