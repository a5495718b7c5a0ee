from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from assay.training.report.charts import (
    HEIGHT,
    MAX_BINS,
    MINUS,
    WIDTH,
    Chart,
    Curve,
    Level,
    draw,
    finite,
    moving_mean,
    shown,
    thin,
    ticks,
)


def svg_of(html: str) -> ElementTree.Element:
    """The drawing, parsed: it must be well formed."""
    return ElementTree.fromstring(re.search(r"<svg.*</svg>", html, re.DOTALL).group())


def points_of(svg: ElementTree.Element, kind: str) -> list[tuple[float, float]]:
    line = next(e for e in svg.iter() if e.get("class", "").split()[:1] == [kind])
    return [tuple(map(float, pair.split(","))) for pair in line.get("points").split()]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.5, 1]),
        (0, 0.63, [0, 0.2, 0.4, 0.6, 0.8]),
        (-3, 3, [-4, -2, 0, 2, 4]),
        (0, 4.8e-6, [0, 2e-6, 4e-6, 6e-6]),
    ],
)
def test_ticks_are_round_and_cover_the_range(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high, 4) == pytest.approx(expected)


def test_ticks_of_a_constant_surround_it() -> None:
    found = ticks(5, 5, 4)
    assert found[0] < 5 < found[-1]
    assert len(ticks(0, 0, 4)) >= 2


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.5, "0.5"), (-0.25, f"{MINUS}0.25"), (1234.5, "1,234"), (4.8e-6, f"4.8e{MINUS}6"), (3e9, "3e9")],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert shown(value) == text


def test_thinning_keeps_extremes_and_order() -> None:
    points = [(float(x), 0.0) for x in range(5000)]
    points[1234] = (1234.0, 9.0)
    points[4321] = (4321.0, -9.0)
    kept = thin(points)
    assert len(kept) <= 2 * MAX_BINS
    assert kept == sorted(kept)
    assert {points[1234], points[4321]} <= set(kept)
    assert thin(points[:10]) == points[:10]


def test_moving_mean_looks_both_ways_and_shortens_at_the_ends() -> None:
    assert moving_mean([(0, 0.0), (1, 3.0), (2, 6.0), (3, 0.0)], 3) == [(0, 1.5), (1, 3.0), (2, 3.0), (3, 3.0)]


def test_what_is_not_finite_is_left_out() -> None:
    curve = Curve("c", [(0, 1.0), (1, math.nan), (2, 3.0), (3, 4.0)], band=[0.1, 0.1, math.inf, 0.2])
    assert finite(curve) == Curve("c", [(0, 1.0), (3, 4.0)], band=[0.1, 0.2])


def test_a_chart_without_points_is_nothing() -> None:
    assert draw(Chart("empty", "step", [Curve("none", []), Curve("lost", [(0, math.nan)])])) == ""


def test_curves_keep_their_shape_inside_the_frame() -> None:
    svg = svg_of(draw(Chart("t", "step", [Curve("c", [(0, 0.0), (1, 1.0), (2, 0.5)])], [Level("l", 1.0)])))
    (x0, y0), (x1, y1), (x2, y2) = points_of(svg, "line")
    assert x0 < x1 < x2 <= WIDTH
    assert 0 <= y1 < y2 < y0 <= HEIGHT  # upwards is less
    assert y2 == pytest.approx((y0 + y1) / 2, abs=0.1)
    level = next(e for e in svg.iter() if e.get("class") == "level")
    assert float(level.get("y1")) == pytest.approx(y1, abs=0.1)


@pytest.mark.parametrize("count", [1, 2, 39, 40, 3000])
def test_any_number_of_points_is_drawn(count: int) -> None:
    html = draw(Chart("t", "step", [Curve("c", [(float(x), float(x % 7)) for x in range(count)])]))
    assert len(points_of(svg_of(html), "line")) >= min(count, 2)
    assert len(html) < 30_000


def test_a_single_measurement_shows_its_interval() -> None:
    svg = svg_of(draw(Chart("t", "step", [Curve("c", [(3.0, 0.5)], band=[0.1], dots=True)])))
    heights = [y for _, y in points_of(svg, "band")]
    assert max(heights) - min(heights) > 20


def test_a_steep_start_does_not_decide_the_scale_where_it_is_unsettled() -> None:
    curve = Curve("loss", [(x, 100.0 if x < 2 else 1.0 + x % 2) for x in map(float, range(100))])
    tall = points_of(svg_of(draw(Chart("t", "step", [curve]))), "raw")
    flat = points_of(svg_of(draw(Chart("t", "step", [curve], unsettled=0.05))), "raw")
    assert abs(tall[50][1] - tall[51][1]) < 3 < 20 < abs(flat[50][1] - flat[51][1])


def test_end_labels_do_not_overlap() -> None:
    curves = [Curve("a", [(0, 0.5), (1, 0.5)]), Curve("b", [(0, 0.5), (1, 0.501)], 1)]
    svg = svg_of(draw(Chart("t", "step", curves)))
    heights = [float(e.get("y")) for e in svg.iter() if e.get("class", "").startswith("end")]
    assert abs(heights[0] - heights[1]) >= 12


def test_every_text_is_escaped() -> None:
    hostile = "<script>&\"'"
    html = draw(Chart(hostile, hostile, [Curve(hostile, [(0, 1.0), (1, 2.0)], dots=True)], [Level(hostile, 1.5)]))
    assert "<script" not in html
    assert svg_of(html).get("aria-label").startswith(hostile)
