"""Line charts as inline SVG, drawn without further packages. Pure: numbers in, text out.

Colours, fonts and line widths come from the page (`report.css`), so that a chart follows its light and dark schemes.
Long curves keep their extremes: each of at most `MAX_BINS` bins is drawn by its least and its greatest value.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 460, 230
"""Size of a chart in its own units; the page scales it."""
MAX_BINS = 200
"""Bins along the horizontal axis of a long curve."""
SMOOTH_FROM = 40
"""Points from which a curve is drawn faintly, under its moving mean."""
MINUS = "\N{MINUS SIGN}"
"""As wide as a digit, unlike the hyphen that Python writes."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 58, 14, 34

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Curve:
    """One curve. `colour` is 0 or 1; `band` has the half-width at each point, drawn as an area around the curve."""

    label: str
    points: Sequence[Point]
    colour: int = 0
    band: Sequence[float] = ()
    dots: bool = False
    """Whether the points are measurements to be marked one by one, and not steps of a process."""

    @property
    def smoothed(self) -> bool:
        """Whether it is drawn twice: faintly, and as its moving mean."""
        return not self.dots and len(self.points) >= SMOOTH_FROM


@dataclass(frozen=True, slots=True)
class Level:
    """A horizontal line to compare with."""

    label: str
    value: float


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart with a title, what its horizontal axis counts, its curves and its levels."""

    title: str
    axis: str
    curves: Sequence[Curve]
    levels: Sequence[Level] = field(default=())
    unsettled: float = 0.0
    """Share of a curve's points, at its start, that do not decide the scale and may leave the picture."""


def draw(chart: Chart) -> str:
    """The chart as an HTML figure; empty where there is nothing to draw. Values that are not finite are left out."""
    curves = [finite(curve) for curve in chart.curves]
    curves = [curve for curve in curves if curve.points]
    if not curves:
        return ""
    frame = _Frame.around(curves, chart.levels, chart.unsettled)
    marks = [*_axes(frame, chart.axis)]
    marks += [_level(frame, level) for level in chart.levels]
    for curve in curves:
        marks += _curve(frame, curve)
    marks += _last_values(frame, curves)
    legend = "".join(f'<span class="key c{curve.colour}">{escape(curve.label)}</span>' for curve in curves)
    legend += "".join(f'<span class="key level">{escape(level.label)}</span>' for level in chart.levels)
    summary = "; ".join(f"{curve.label}: last value {shown(curve.points[-1][1])}" for curve in curves)
    return (
        f'<figure class="chart"><figcaption><b>{escape(chart.title)}</b>'
        f'<span class="legend">{legend}</span></figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(f"{chart.title}. {summary}")}">'
        f"{''.join(marks)}</svg></figure>"
    )


def finite(curve: Curve) -> Curve:
    """The curve without the points that cannot be drawn."""
    band = curve.band or [0.0] * len(curve.points)
    kept = [(p, b) for p, b in zip(curve.points, band, strict=True) if all(map(math.isfinite, (*p, b)))]
    bands = [b for _, b in kept] if curve.band else []
    return Curve(curve.label, [p for p, _ in kept], curve.colour, bands, curve.dots)


def thin(points: Sequence[Point], bins: int = MAX_BINS) -> list[Point]:
    """At most two points of each of `bins` equal stretches: the least and the greatest value, in order."""
    if len(points) <= 2 * bins:
        return list(points)
    kept: list[Point] = []
    for index in range(bins):
        part = points[index * len(points) // bins : (index + 1) * len(points) // bins]
        ends = {min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])}
        kept += sorted(ends)
    return kept


def moving_mean(points: Sequence[Point], window: int) -> list[Point]:
    """Each value replaced by the mean of the up to `window` values around it."""
    half = window // 2
    smooth = []
    for index, (x, _) in enumerate(points):
        around = [y for _, y in points[max(0, index - half) : index + half + 1]]
        smooth.append((x, sum(around) / len(around)))
    return smooth


def ticks(low: float, high: float, count: int) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart) that cover `low` to `high` in about `count` steps."""
    if high <= low:
        pad = abs(low) * 0.1 or 1.0
        low, high = low - pad, high + pad
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.floor(low / step + 0.1), math.ceil(high / step - 0.1)  # a little beyond the last tick is fine
    return [index * step for index in range(first, last + 1)]


def shown(value: float) -> str:
    """A number for people: three significant digits, powers of ten for the very small and large."""
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        text = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
        return text.replace("-", MINUS)
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}".replace("-", MINUS)


@dataclass(frozen=True, slots=True)
class _Frame:
    """The drawing area and the numbers at its edges."""

    x_ticks: Sequence[float]
    y_ticks: Sequence[float]
    x_low: float
    x_high: float

    @classmethod
    def around(cls, curves: Sequence[Curve], levels: Iterable[Level], unsettled: float) -> _Frame:
        xs = [x for curve in curves for x, _ in curve.points]
        ys = [level.value for level in levels]
        for curve in curves:
            bands = curve.band or [0.0] * len(curve.points)
            pairs = list(zip(curve.points, bands, strict=True))[int(unsettled * len(bands)) :]
            ys += [y + sign * b for (_, y), b in pairs for sign in (-1, 1)]
        least = min(y for curve in curves for _, y in curve.points)
        low, high = _from_zero(max(min(ys), 0.0) if least >= 0 else min(ys), max(ys))
        x_low, x_high = _from_zero(min(xs), max(xs))
        if x_low == x_high:
            x_low, x_high = x_low - 1, x_high + 1
        inside = [t for t in ticks(x_low, x_high, 5) if x_low <= t <= x_high]
        return cls(inside, ticks(low, high, 4), x_low, x_high)

    def x(self, value: float) -> float:
        return _LEFT + (value - self.x_low) / (self.x_high - self.x_low) * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        low, high = self.y_ticks[0], self.y_ticks[-1]
        return HEIGHT - _BOTTOM - (value - low) / (high - low) * (HEIGHT - _TOP - _BOTTOM)

    def path(self, points: Iterable[Point]) -> str:
        """Points as SVG has them; what lies under the lowest line (a band around 0) is drawn on it."""
        return " ".join(f"{self.x(x):.1f},{min(self.y(y), HEIGHT - _BOTTOM + 4):.1f}" for x, y in points)


def _from_zero(low: float, high: float) -> tuple[float, float]:
    """The range, begun at 0 where that wastes little of it."""
    return (0.0 if 0 <= low < 0.6 * high else low), high


def _axes(frame: _Frame, label: str) -> Iterable[str]:
    for value in frame.y_ticks:
        y = frame.y(value)
        yield f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{shown(value)}</text>'
    for value in frame.x_ticks:
        yield f'<text x="{frame.x(value):.1f}" y="{HEIGHT - _BOTTOM + 16}" text-anchor="middle">{shown(value)}</text>'
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    yield f'<text class="axis" x="{middle:.0f}" y="{HEIGHT - 3}" text-anchor="middle">{escape(label)}</text>'


def _level(frame: _Frame, level: Level) -> str:
    y = frame.y(level.value)
    return f'<line class="level" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _curve(frame: _Frame, curve: Curve) -> Iterable[str]:
    colour = f"c{curve.colour}"
    if curve.band:
        pairs = list(zip(curve.points, curve.band, strict=True))
        if len(pairs) == 1:
            pairs = [((x + dx, y), b) for (x, y), b in pairs for dx in (-0.008 * (frame.x_high - frame.x_low), 0)]
            pairs.append(((curve.points[0][0] * 2 - pairs[0][0][0], curve.points[0][1]), curve.band[0]))
        area = [(x, y + b) for (x, y), b in pairs] + [(x, y - b) for (x, y), b in reversed(pairs)]
        yield f'<polygon class="band {colour}" points="{frame.path(area)}"/>'
    if curve.dots:
        yield f'<polyline class="line {colour}" points="{frame.path(curve.points)}"/>'
        for (x, y), band in zip(curve.points, curve.band or [0.0] * len(curve.points), strict=True):
            note = f"{shown(y)}{f' ± {shown(band)}' if curve.band else ''}"
            yield (
                f'<circle class="dot {colour}" cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="3.2">'
                f"<title>{escape(curve.label)}, {shown(x)}: {note}</title></circle>"
            )
    elif not curve.smoothed:
        yield f'<polyline class="line {colour}" points="{frame.path(curve.points)}"/>'
    else:
        smooth = moving_mean(curve.points, max(3, len(curve.points) // 20))
        yield f'<polyline class="raw {colour}" points="{frame.path(thin(curve.points))}"/>'
        yield f'<polyline class="line {colour}" points="{frame.path(thin(smooth))}"/>'


def _last_values(frame: _Frame, curves: Sequence[Curve]) -> Iterable[str]:
    """The value at which each curve ends, beside its end, moved apart where they would overlap."""
    ends = []
    for curve in curves:
        points = moving_mean(curve.points, max(3, len(curve.points) // 20)) if curve.smoothed else curve.points
        ends.append((frame.y(points[-1][1]), points[-1], curve.colour))
    ends.sort()
    below = -math.inf
    for y, (x, value), colour in ends:
        if frame.x(x) < 0.9 * frame.x(frame.x_high):  # inside the picture: above its end, out of other curves' way
            place = f'x="{frame.x(x):.1f}" y="{y - 9:.1f}" text-anchor="middle"'
        else:
            y = max(y, below + 13)
            below = y
            place = f'x="{frame.x(x) + 6:.1f}" y="{y + 4:.1f}"'
        yield f'<text class="end c{colour}" {place}>{shown(value)}</text>'
