"""Figures with their errors and units, as a page writes them."""

from collections.abc import Sequence

from mtrl_cli.display import lines


def with_error(value: float, se: float | None, *, sign: bool = False) -> str:
    """A value ± its standard error: −0.223 ± 0.012."""
    return lines.with_error(value, se, "+" if sign else "").replace("-", "−")


def interval(ends: Sequence[float] | None) -> str:
    """A 95 % interval on a line of its own; nothing where there is none."""
    return "" if not ends else f"\n({ends[0]:z.3f} to {ends[1]:z.3f})".replace("-", "−")


def duration(seconds: float) -> str:
    """A duration with its unit: 41.2 s, 12 min 30 s, 3 h 04 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, second = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {second:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def share(value: float, se: float | None = None) -> str:
    """A share in percent: 36.0 %, 36.0 ± 0.4 %."""
    return f"{value:.1%}" if se is None else f"{100 * value:.1f} ± {100 * se:.1f}%"
