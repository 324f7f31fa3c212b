"""Line charts and bars as inline SVG: coordinates are computed here, colours come from the page.

A chart is drawn in a box of fixed size and scaled by the browser. Values that are not finite are
left out; an empty chart is an empty string.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from mtrl_cli.report.marks import Mark, Placed, placed

Point = tuple[float, float]
COLOURS = 6
"""After these lines are dashed, and marks have another shape."""

_CORNERS: tuple[tuple[Point, ...], ...] = (
    (),
    ((-3.5, -3.5), (3.5, -3.5), (3.5, 3.5), (-3.5, 3.5)),
    ((0, -5), (5, 0), (0, 5), (-5, 0)),
    ((0, -4.5), (4.5, 3.5), (-4.5, 3.5)),
)
"""The shapes of marks: a circle, a square, a diamond, a triangle. There are as many dashes."""
_LETTER = 7.9
"""How wide a letter is at the size that a narrow page has; on a wide one they are smaller."""


@dataclass(frozen=True, slots=True)
class Series:
    """One line. ``spread`` is the half height of a band around each point, or empty."""

    name: str
    points: Sequence[Point]
    colour: int = 0
    spread: Sequence[float] = ()
    weight: str = "line"
    """``line``, ``faint`` (what a line was made of), ``thin`` (one of several) or ``thick``."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of series over the step; ``references`` are horizontal lines with a name, ``axis``
    is what the heights are."""

    title: str
    series: Sequence[Series]
    axis: str
    references: Sequence[tuple[str, float]] = ()
    marks: Sequence[Mark] = ()
    log: bool = False
    from_zero: bool = False
    large: bool = False
    reach: Point | None = None
    """First and last step of the axis, where they are not those of the series."""


def number(value: float) -> str:
    """A number in few characters: 0.043, 1,200, 2.5e−06."""
    size = abs(value)
    if value == 0:
        told = "0"
    elif size >= 1000:
        told = f"{value:,.0f}"
    elif size < 1e-3:
        told = f"{value:.2g}"
    else:
        told = f"{value:.4g}" if size >= 1 else f"{value:.3f}".rstrip("0").rstrip(".")
    return told.replace("-", "−")


def _mean(value: float) -> str:
    """A mean reward, with the digits that it has on the terminal and in the tables."""
    return number(value) if abs(value) >= 1000 else f"{value:z.3f}".replace("-", "−")


def draw(chart: Chart) -> str:
    """The chart's SVG, with its title for screen readers."""
    series = [_finite(line, chart.log) for line in chart.series]
    series = [line for line in series if line.points]
    marks = [mark for mark in chart.marks if math.isfinite(mark.y)]
    if not series and not marks:
        return ""
    width, height = (760, 320) if chart.large else (340, 190)
    right = 14 + max((_LETTER * len(_named(*each)) for each in chart.references), default=0.0)
    box = _Box(54, 24, width - right, height - 38)
    xs = [*(chart.reach or ()), *(x for line in series for x, _ in line.points)]
    xs += [mark.x for mark in marks]
    ys = list(_heights(series, marks, chart))
    log = chart.log and max(ys) >= 10 * min(ys)  # within a decade a logarithm only hides the ticks
    scale = _Scale(box, min(xs), max(xs), min(ys), max(ys), log)
    parts = [
        *_axes(scale),
        *_axis_titles(box, chart.axis, log=log),
        *_references(scale, chart.references),
    ]
    for line in series:
        parts += _line(scale, line)
    for one in placed(marks, middle=(min(xs) + max(xs)) / 2):
        parts += _mark(scale, one)
    title = escape(chart.title)
    large = ' class="large"' if chart.large else ""
    return (
        f'<svg{large} viewBox="0 0 {width} {height}" role="img" aria-label="{title}">'
        f"<title>{title}</title>{''.join(parts)}</svg>"
    )


@dataclass(frozen=True, slots=True)
class _Box:
    left: float
    top: float
    right: float
    bottom: float


class _Scale:
    """From values to places in the box, with the ticks of both axes."""

    def __init__(
        self, box: _Box, left: float, right: float, low: float, high: float, log: bool
    ) -> None:
        self.box, self._log = box, log
        if left == right:
            left, right = left - 1, right + 1
        self._left, self._right = left, right
        self.middle = (left + right) / 2
        low, high = self._height(low), self._height(high)
        room = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
        self._low, self._high = low - (room if low != 0 else 0), high + room
        self.x_ticks = _steps(left, right)
        if log:
            self.y_ticks = _powers(self._low, self._high)
        else:
            few = _ticks(self._low, self._high, 5)
            self.y_ticks = few if len(few) > 2 else _ticks(self._low, self._high, 10)

    def _height(self, value: float) -> float:
        return math.log10(value) if self._log else value

    def x(self, value: float) -> float:
        share = (value - self._left) / (self._right - self._left)
        return self.box.left + share * (self.box.right - self.box.left)

    def y(self, value: float) -> float:
        share = (self._height(value) - self._low) / (self._high - self._low)
        return self.box.bottom - share * (self.box.bottom - self.box.top)


def _finite(line: Series, log: bool) -> Series:
    kept = [
        index
        for index, (x, y) in enumerate(line.points)
        if math.isfinite(x) and math.isfinite(y) and (y > 0 or not log)
    ]
    spread = [line.spread[index] for index in kept] if line.spread else ()
    points = [line.points[index] for index in kept]
    return Series(line.name, points, line.colour, spread, line.weight)


def _heights(series: Iterable[Series], marks: Iterable[Mark], chart: Chart) -> Iterable[float]:
    for line in series:
        spread = line.spread or [0.0] * len(line.points)
        for (_, y), reach in zip(line.points, spread, strict=True):
            yield from (y - reach, y + reach)
    for mark in marks:
        yield from (mark.y - (mark.reach or 0.0), mark.y + (mark.reach or 0.0))
    yield from (value for _, value in chart.references)
    if chart.from_zero:
        yield 0.0


def _ticks(low: float, high: float, about: int) -> list[float]:
    raw = (high - low) / about
    unit: float = 10.0 ** math.floor(math.log10(raw))
    step = next((m * unit for m in (1, 2, 2.5, 5) if m * unit >= raw), 10 * unit)
    first = math.ceil(low / step)
    return [round(i * step, 12) for i in range(first, math.floor(high / step) + 1)]


def _steps(left: float, right: float) -> list[float]:
    """Ticks of whole steps. The last step has one, also where that is no round number; a round one
    that would stand too near to it makes way."""
    ticks = [tick for tick in _ticks(left, right, 6) if tick == int(tick)]
    if right != int(right) or not ticks or ticks[-1] == right:
        return ticks
    near = (right - left) / 10
    return [*(tick for tick in ticks if right - tick > near), right]


def _powers(low: float, high: float) -> list[float]:
    """Ticks of a logarithmic axis, whose ends are exponents: powers of ten; where there are fewer
    than three, also two and five times these."""
    exponents = range(math.floor(low), math.floor(high) + 1)
    for factors in ((1,), (1, 2, 5)):
        ticks = [
            m * 10.0**p for p in exponents for m in factors if low <= math.log10(m) + p <= high
        ]
        if len(ticks) > 2:
            break
    return ticks


def _axes(scale: _Scale) -> Iterable[str]:
    box = scale.box
    for tick in scale.y_ticks:
        y = scale.y(tick)
        yield f'<line class="grid" x1="{box.left}" x2="{box.right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="tick end" x="{box.left - 7}" y="{y + 3.5:.1f}">{number(tick)}</text>'
    for tick in scale.x_ticks:
        x = scale.x(tick)
        yield f'<text class="tick mid" x="{x:.1f}" y="{box.bottom + 17}">{number(tick)}</text>'
    yield (
        f'<line class="axis" x1="{box.left}" x2="{box.right}" y1="{box.bottom}" y2="{box.bottom}"/>'
    )


def _axis_titles(box: _Box, axis: str, *, log: bool) -> Iterable[str]:
    """What lies along the two axes: the step, and above the other one what it is."""
    told = f"{axis} (logarithmic)" if log else axis
    yield f'<text class="tick" x="2" y="11">{escape(told)}</text>'
    yield f'<text class="tick end" x="{box.right}" y="{box.bottom + 31}">step</text>'


def _named(name: str, value: float) -> str:
    """What stands beside a horizontal line."""
    return f"{name if len(name) <= 14 else name[:13] + '…'} {_mean(value)}"


def _references(scale: _Scale, references: Sequence[tuple[str, float]]) -> Iterable[str]:
    """Horizontal lines; their names stand at the right, moved apart where they would overlap."""
    taken = -math.inf
    for name, value in sorted(references, key=lambda item: -item[1]):
        y = scale.y(value)
        taken = max(y + 3.5, taken + 14)
        yield (
            f'<line class="reference" x1="{scale.box.left}" x2="{scale.box.right}" '
            f'y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="tick" x="{scale.box.right + 11}" y="{taken:.1f}">'
            f"{escape(_named(name, value))}"
            f"<title>{escape(name)}: {_mean(value)}</title></text>"
        )


def _line(scale: _Scale, line: Series) -> Iterable[str]:
    colour, name = _colour(line.colour), escape(line.name)
    if line.spread:
        pairs = list(zip(line.points, line.spread, strict=True))
        upper = [f"{scale.x(x):.1f},{scale.y(y + reach):.1f}" for (x, y), reach in pairs]
        lower = [f"{scale.x(x):.1f},{scale.y(y - reach):.1f}" for (x, y), reach in pairs]
        edge = " ".join([*upper, *reversed(lower)])
        yield f'<polygon class="band {colour}" points="{edge}"/>'
    if len(line.points) == 1:
        x, y = line.points[0]
        yield f'<circle class="dot {colour}" cx="{scale.x(x):.1f}" cy="{scale.y(y):.1f}"'
        yield f' r="2.5"><title>{name}</title></circle>'
        return
    path = " ".join(f"{scale.x(x):.1f},{scale.y(y):.1f}" for x, y in line.points)
    weight = "" if line.weight == "line" else f" {line.weight}"
    yield (
        f'<polyline class="line {colour}{weight}" points="{path}"><title>{name}</title></polyline>'
    )


def _mark(scale: _Scale, placed: Placed) -> Iterable[str]:
    mark, at = placed.mark, scale.x(placed.mark.x) + placed.beside
    colour = "shared" if placed.shared else _colour(mark.colour)
    tip = f"{escape(placed.tip)}, step {number(mark.x)}: {number(mark.y)}"
    y, bar = scale.y(mark.y), ""
    if mark.reach:
        tip += f" ± {number(mark.reach)}"
        low, high = scale.y(mark.y - mark.reach), scale.y(mark.y + mark.reach)
        bar = f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{low:.1f}" y2="{high:.1f}"/>'
    shape = _shape(0 if placed.shared else mark.colour, at, y)
    yield f'<g class="mark {colour}"><title>{tip}</title>{bar}{shape}</g>'
    if placed.label:
        side, way = ("", 9) if placed.beside >= 0 and mark.x < scale.middle else (" end", -9)
        yield f'<text class="tick told{side}" x="{at + way:.1f}" y="{y + 15:.1f}">'
        yield f"{escape(placed.label)}</text>"


def swatch(number: int) -> str:
    """A line and a mark as those of setting ``number``, for a legend."""
    return (
        f'<svg class="mark {_colour(number)}" viewBox="0 0 30 10" aria-hidden="true">'
        f'<line class="line {_colour(number)}" x1="0" x2="30" y1="5" y2="5"/>'
        f"{_shape(number, 15, 5)}</svg>"
    )


def _shape(number: int, x: float, y: float) -> str:
    """The mark of a setting: a circle; of those whose colour was used before a square, a diamond,
    a triangle."""
    corners = _CORNERS[number // COLOURS % len(_CORNERS)]
    if not corners:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
    points = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
    return f'<polygon points="{points}"/>'


def _colour(number: int) -> str:
    """The class of a setting's colour, and where that was used before, of its dashes."""
    again = number // COLOURS % len(_CORNERS)
    return f"c{number % COLOURS}" + (f" d{again}" if again else "")
