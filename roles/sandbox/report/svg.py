"""A small SVG writer: line charts with axes, a legend and shaded spans. No plotting library, so the report costs no memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape, quoteattr

# Okabe and Ito's palette: told apart by people with colour-blindness too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
FONT = "font-family='sans-serif'"
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 34, 40


@dataclass(frozen=True, slots=True)
class Line:
    """A series of (x, y) points; one without a name stays out of the legend. A dashed line tells it apart without colour."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: str = COLOURS[0]
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """A shaded range of the x axis with a caption."""

    begin: float
    end: float
    caption: str


@dataclass(slots=True)
class Chart:
    """One chart. `log_y` draws the y axis logarithmically; values at or below zero are then left out."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    spans: Sequence[Span] = field(default_factory=tuple)
    log_y: bool = False
    y_min: float | None = None

    def render(self, x: float, y: float, width: float, height: float) -> list[str]:
        """SVG elements of the chart in the given rectangle."""
        frame = _Frame(self, x + LEFT, y + TOP, width - LEFT - RIGHT, height - TOP - BOTTOM)
        out = [_text(x + LEFT, y + 20, self.title, size=14, weight="bold")]
        out += frame.spans() + frame.grid()
        for line in self.lines:
            out += frame.path(line)
        return out + frame.legend() + frame.captions()


class _Frame:
    """The drawing area and its two scales."""

    def __init__(self, chart: Chart, x: float, y: float, width: float, height: float) -> None:
        self.chart, self.x, self.y, self.width, self.height = chart, x, y, width, height
        xs = [p[0] for line in chart.lines for p in line.points] + [v for s in chart.spans for v in (s.begin, s.end)]
        ys = [p[1] for line in chart.lines for p in line.points if not chart.log_y or p[1] > 0]
        self.x0, self.x1 = (min(xs), max(xs)) if xs else (0.0, 1.0)
        low = min(ys) if ys else 1.0
        high = max(ys) if ys else 1.0
        if chart.log_y:
            self.y0, self.y1 = 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high))
            if self.y0 == self.y1:
                self.y1 = self.y0 * 10
        else:
            self.y0 = chart.y_min if chart.y_min is not None else low
            self.y1 = nice_above(high) if high > self.y0 else self.y0 + 1
        if self.x0 == self.x1:
            self.x1 = self.x0 + 1

    def px(self, value: float) -> float:
        return self.x + (value - self.x0) / (self.x1 - self.x0) * self.width

    def py(self, value: float) -> float:
        if self.chart.log_y:
            share = (math.log10(value) - math.log10(self.y0)) / (math.log10(self.y1) - math.log10(self.y0))
        else:
            share = (value - self.y0) / (self.y1 - self.y0)
        return self.y + self.height * (1 - min(max(share, 0.0), 1.0))

    def spans(self) -> list[str]:
        out = []
        for index, span in enumerate(self.chart.spans):
            fill = "#f2f2f2" if index % 2 == 0 else "#e4ecf4"
            left, right = self.px(span.begin), self.px(span.end)
            out.append(f"<rect x='{left:.1f}' y='{self.y:.1f}' width='{right - left:.1f}' height='{self.height:.1f}' fill='{fill}'/>")
            out.append(_text((left + right) / 2, self.y + 14, span.caption, size=11, anchor="middle", fill="#555"))
        return out

    def grid(self) -> list[str]:
        out = []
        for value in self._y_ticks():
            level = self.py(value)
            out.append(
                f"<line x1='{self.x}' y1='{level:.1f}' x2='{self.x + self.width}' y2='{level:.1f}' stroke='#ccc' stroke-width='0.6'/>"
            )
            out.append(_text(self.x - 6, level + 4, f"{value:g}", size=11, anchor="end"))
        for value in ticks(self.x0, self.x1, 8):
            out.append(_text(self.px(value), self.y + self.height + 16, f"{value:g}", size=11, anchor="middle"))
        box = f"x='{self.x}' y='{self.y}' width='{self.width}' height='{self.height}'"
        return [*out, f"<rect {box} fill='none' stroke='#888' stroke-width='1'/>"]

    def _y_ticks(self) -> list[float]:
        if not self.chart.log_y:
            return ticks(self.y0, self.y1, 5)
        first, last = round(math.log10(self.y0)), round(math.log10(self.y1))
        return [10.0**power for power in range(first, last + 1)]

    def path(self, line: Line) -> list[str]:
        points = [p for p in line.points if not self.chart.log_y or p[1] > 0]
        if not points:
            return []
        data = " ".join(f"{self.px(px):.1f},{self.py(py):.1f}" for px, py in points)
        dash = " stroke-dasharray='5 3'" if line.dashed else ""
        return [f"<polyline points='{data}' fill='none' stroke={quoteattr(line.colour)} stroke-width='1.6'{dash}/>"]

    def legend(self) -> list[str]:
        out: list[str] = []
        # Beside the title, where no line of the chart can run through it.
        at = self.x + 24 + 8.6 * len(self.chart.title)
        for line in self.chart.lines:
            if not line.name:
                continue
            dash = " stroke-dasharray='5 3'" if line.dashed else ""
            level = self.y - 18
            ends = f"x1='{at:.1f}' y1='{level:.1f}' x2='{at + 22:.1f}' y2='{level:.1f}'"
            out.append(f"<line {ends} stroke={quoteattr(line.colour)} stroke-width='2'{dash}/>")
            out.append(_text(at + 27, level + 4, line.name, size=11))
            at += 40 + 6.3 * len(line.name)
        return out

    def captions(self) -> list[str]:
        middle = self.y + self.height / 2
        return [
            _text(self.x + self.width / 2, self.y + self.height + 33, self.chart.x_label, size=12, anchor="middle"),
            f"<text x='{self.x - 48:.1f}' y='{middle:.1f}' {FONT} font-size='12' text-anchor='middle' "
            f"transform='rotate(-90 {self.x - 48:.1f} {middle:.1f})'>{escape(self.chart.y_label)}</text>",
        ]


def document(charts: Sequence[Chart], *, width: int = 960, height: int = 320) -> str:
    """A whole SVG file with the charts one below the other."""
    total = height * len(charts)
    out = [f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{total}' viewBox='0 0 {width} {total}'>"]
    out.append(f"<rect width='{width}' height='{total}' fill='white'/>")
    for index, chart in enumerate(charts):
        out += chart.render(0, index * height, width, height)
    return "\n".join([*out, "</svg>", ""])


def ticks(low: float, high: float, count: int) -> list[float]:
    """About `count` round values between `low` and `high`."""
    if high <= low:
        return [low]
    step = nice_above((high - low) / count)
    first = math.ceil(low / step)
    return [round(i * step, 10) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def nice_above(value: float) -> float:
    """The smallest of 1, 2, 2.5, 5 times a power of ten that is not below `value`."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= value * (1 - 1e-9))


def _text(x: float, y: float, text: str, *, size: int, anchor: str = "start", weight: str = "normal", fill: str = "#222") -> str:
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' {FONT} font-size='{size}' text-anchor='{anchor}' font-weight='{weight}' "
        f"fill='{fill}'>{escape(text)}</text>"
    )
