"""Panels drawn as SVG for a page: sharp at any size, with colours that the page's style decides.

Everything is classes and geometry. Colours, dashes and fonts are in `page.css`, so that one drawing
serves light, dark and print.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from xml.etree import ElementTree

import numpy as np
from jaxtyping import Float
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator

from surestep.report.figures import Band, Bars, Line, Panel, Scale

WIDTH, HEIGHT = 480.0, 320.0
TOP, BOTTOM = 12.0, 46.0
SERIES = 8
"""Colours that the page has for groups."""
FIXED = {"bound": "bound", "horizon": "quiet", "paper": "quiet", "others": "quiet"}
EMPHASISED = ("learned", "winner")
DECADES_BEYOND = 9.0
"""How many powers of ten an axis goes beyond the curves that the panel is about."""

_CHARACTER = 7.3  # width of a digit in a label, in the drawing's units


def classes(groups: Sequence[str]) -> dict[str, str]:
    """The style class of every group."""
    free = [group for group in groups if group not in FIXED]
    return FIXED | {group: f"s{i % SERIES}" for i, group in enumerate(free)}


@dataclasses.dataclass(frozen=True)
class Axis:
    """A range of values and where it lies in the drawing."""

    low: float
    high: float
    scale: Scale
    start: float
    end: float

    def __call__(self, values: Sequence[float] | np.ndarray) -> Float[np.ndarray, " point"]:
        """Positions; not a number where a value cannot be shown on this axis."""
        array = np.asarray(values, float)
        good = np.isfinite(array) & ((array > 0) | (self.scale == "linear"))
        array = _warped(np.where(good, array, np.nan), self.scale)
        low, high = _warped(np.array([self.low, self.high]), self.scale)
        return self.start + (array - low) / (high - low) * (self.end - self.start)

    def clamped(self, values: Sequence[float] | np.ndarray) -> Float[np.ndarray, " point"]:
        """Positions with what lies beyond an end, infinity and 0 included, put at that end."""
        return self(np.clip(np.nan_to_num(np.asarray(values, float)), self.low, self.high))

    def ticks(self) -> list[float]:
        """A handful of round values."""
        if self.scale == "log":
            first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
            if last - first >= 2:
                stride = math.ceil((last - first + 1) / 7)
                return [10.0**k for k in range(first, last + 1) if k % stride == 0]
            parts = [m * 10.0**k for k in range(first - 1, last + 1) for m in (1, 2, 5)]
            if len(_inside(parts, self)) > 1:
                return _inside(parts, self)
        even = MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(self.low, self.high)
        return _inside(even, self)


def _warped(values: np.ndarray, scale: Scale) -> np.ndarray:
    return np.log10(values) if scale == "log" else values


def _inside(values: Sequence[float] | np.ndarray, axis: Axis) -> list[float]:
    slack = 1e-9 * (axis.high - axis.low)
    return [float(v) for v in values if axis.low - slack <= v <= axis.high + slack]


def draw_svg(panel: Panel, styles: dict[str, str], name: str, description: str) -> str:
    """A panel as an SVG element; `name` makes its identifiers unique on a page."""
    if panel.field is not None:
        raise ValueError("pages show lines, bands, bars, marks and points, not fields of colours")
    x, y = _axes(panel)
    svg = ElementTree.Element(
        "svg",
        {
            "class": "plot",
            "viewBox": f"0 0 {WIDTH:g} {HEIGHT:g}",
            "role": "img",
            "aria-labelledby": f"{name}-title {name}-description",
        },
    )
    ElementTree.SubElement(svg, "title", {"id": f"{name}-title"}).text = panel.title
    ElementTree.SubElement(svg, "desc", {"id": f"{name}-description"}).text = description
    _frame(svg, panel, x, y)
    for band in sorted(panel.bands, key=lambda b: b.group in EMPHASISED):
        _band(svg, band, x, y, styles)
    for bars in panel.bars:
        _bars(svg, bars, x, y, styles)
    for mark in panel.marks:
        if x.low <= mark.x <= x.high:
            at = float(x([mark.x])[0])
            _path(svg, [(at, y.start), (at, y.end)], f"mark {styles[mark.group]} {mark.dash}")
    for line in sorted(panel.lines, key=lambda one: one.group in EMPHASISED):
        _line(svg, line, x, y, styles)
    for points in panel.points:
        for px, py in zip(x(points.x), y(points.y), strict=True):
            if math.isfinite(px) and math.isfinite(py):
                shape = {"cx": f"{px:.1f}", "cy": f"{py:.1f}", "r": f"{points.size / 2:g}"}
                ElementTree.SubElement(
                    svg, "circle", shape | {"class": f"point {styles[points.group]}"}
                )
    if panel.right:
        _right(svg, panel, x, styles)
    return ElementTree.tostring(svg, encoding="unicode")


def cut_off(panel: Panel) -> list[str]:
    """The groups with lines that go on beyond the panel's upper or lower edge."""
    _, y = _axes(panel)
    beyond = (
        line.group
        for line in panel.lines
        if any(_usable(v, panel.y_scale) and not y.low <= v <= y.high for v in line.y)
    )
    return list(dict.fromkeys(beyond))


def not_positive(panel: Panel) -> list[str]:
    """The groups with lines that end on a logarithmic axis because they fall to 0 or below."""
    if panel.y_scale == "linear":
        return []
    return list(dict.fromkeys(line.group for line in panel.lines if any(v <= 0 for v in line.y)))


def _axes(panel: Panel) -> tuple[Axis, Axis]:
    low, high = _y_range(panel)
    y = Axis(low, high, panel.y_scale, HEIGHT - BOTTOM, TOP)
    left = 32.0 + _CHARACTER * max(len(plain_tick(t, panel.y_scale)) for t in y.ticks())
    right = WIDTH - (64.0 if panel.right else 14.0)
    return Axis(*_x_range(panel), panel.x_scale, left, right), y


def _x_range(panel: Panel) -> tuple[float, float]:
    values = [v for line in (*panel.lines, *panel.points) for v in line.x]
    values += [v for bars in panel.bars for v in bars.edges]
    values += [mark.x for mark in panel.marks] if panel.bars else []
    return _range(values, panel.x_scale, 0.0)


def _y_range(panel: Panel) -> tuple[float, float]:
    if panel.bars:
        return 0.0, 1.06 * max(max(bars.heights, default=0.0) for bars in panel.bars) or 1.0
    drawn = [v for v in _heights(panel, lambda group: True) if _usable(v, panel.y_scale)]
    about = [v for v in _heights(panel, lambda group: group in EMPHASISED) if _usable(v, "log")]
    if panel.y_scale == "log" and about:
        # A solver that blows up, or one at the limit of the arithmetic, must not flatten the rest.
        room = 10**DECADES_BEYOND
        drawn = np.clip(drawn, min(about) / room, max(about) * room).tolist()
    return _range(drawn, panel.y_scale, 0.04)


def _heights(panel: Panel, wanted: Callable[[str], bool]) -> Iterator[float]:
    for line in (*panel.lines, *panel.points):
        if wanted(line.group):
            yield from line.y
    for band in panel.bands:
        if wanted(band.group):
            yield from band.low
            yield from band.high


def _usable(value: float, scale: Scale) -> bool:
    return math.isfinite(value) and (value > 0 or scale == "linear")


def _range(values: Sequence[float], scale: Scale, margin: float) -> tuple[float, float]:
    """From the smallest to the largest value that can be shown, with a margin on either side."""
    # Differences and steps between ticks must be numbers too.
    shown = np.clip([v for v in values if _usable(v, scale)] or [1.0], -1e300, 1e300)
    good = _warped(shown, scale)
    low, high = float(good.min()), float(good.max())
    if high - low < 1e-9 * max(1.0, abs(high)):
        low, high = low - 0.5, high + 0.5
    pad = margin * (high - low)
    low, high = low - pad, high + pad
    if scale == "linear":
        return low, high
    return 10.0 ** max(low, -300.0), 10.0 ** min(high, 300.0)


def _frame(svg: ElementTree.Element, panel: Panel, x: Axis, y: Axis) -> None:
    """Grid, ticks and the names of the axes."""
    for value, at in zip(y.ticks(), y(y.ticks()), strict=True):
        _path(svg, [(x.start, at), (x.end, at)], "grid")
        _tick(svg, value, panel.y_scale, x.start - 7, at + 4.5, "end")
    for value, at in zip(x.ticks(), x(x.ticks()), strict=True):
        _path(svg, [(at, y.start), (at, y.start + 4)], "axis")
        _tick(svg, value, panel.x_scale, at, y.start + 19, "middle")
    _path(svg, [(x.start, y.start), (x.end, y.start)], "axis")
    _text(svg, panel.x_label, (x.start + x.end) / 2, HEIGHT - 7, "middle", "label")
    middle = (y.start + y.end) / 2
    label = _text(svg, panel.y_label, 14, middle, "middle", "label")
    label.set("transform", f"rotate(-90 14 {middle:.1f})")
    room = 2 * (middle - 4)
    if len(panel.y_label) * _CHARACTER > room:
        label.set("textLength", f"{room:g}")
        label.set("lengthAdjust", "spacingAndGlyphs")


def _text(
    svg: ElementTree.Element, text: str, x: float, y: float, anchor: str, kind: str
) -> ElementTree.Element:
    place = {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor, "class": kind}
    element = ElementTree.SubElement(svg, "text", place)
    element.text = text
    return element


def plain_tick(value: float, scale: Scale) -> str:
    """A tick's label without raised digits: as wide as what is drawn."""
    if scale == "log" and (exponent := _power(value)) is not None and abs(exponent) > 3:
        return f"10{exponent}"
    return f"{value:g}".replace("-", "\u2212")


def _power(value: float) -> int | None:
    """The exponent of a power of ten."""
    exponent = round(math.log10(value))
    return exponent if math.isclose(value, 10.0**exponent, rel_tol=1e-9) else None


def _tick(
    svg: ElementTree.Element, value: float, scale: Scale, x: float, y: float, anchor: str
) -> None:
    exponent = _power(value) if scale == "log" else None
    if exponent is None or abs(exponent) <= 3:
        _text(svg, plain_tick(value, scale), x, y, anchor, "tick")
        return
    element = _text(svg, "10", x, y, anchor, "tick")
    raised = ElementTree.SubElement(element, "tspan", {"dy": "-5", "class": "raised"})
    raised.text = f"{exponent}".replace("-", "\u2212")


def _line(svg: ElementTree.Element, line: Line, x: Axis, y: Axis, styles: dict[str, str]) -> None:
    kind = f"line {styles[line.group]} {line.dash}"
    if line.group in EMPHASISED:
        kind += " emphasised"
    _curve(svg, np.stack([x(line.x), y(line.y)], axis=1), kind, (x, y))


def _curve(
    svg: ElementTree.Element, points: np.ndarray, kind: str, within: tuple[Axis, Axis]
) -> None:
    """A line through points, cut at the panel's edges, with as few points as it takes."""
    data = _data(points, within)
    if data:
        ElementTree.SubElement(svg, "path", {"d": data, "class": kind})


def _data(points: np.ndarray, within: tuple[Axis, Axis]) -> str:
    x, y = within
    path = Path(points)
    path.should_simplify = True
    edges = (x.start - 1, y.end - 1, x.end + 1, y.start + 1)
    clean = path.cleaned(remove_nans=True, clip=edges, simplify=True)
    letters = {int(Path.MOVETO): "M", int(Path.LINETO): "L"}
    places, codes = np.asarray(clean.vertices), np.asarray(clean.codes)
    words = [
        f"{letters[int(code)]}{px:.1f} {py:.1f}"
        for (px, py), code in zip(places, codes, strict=True)
        if int(code) in letters
    ]
    # Simplified paths end with their last point twice.
    return "".join(word for i, word in enumerate(words) if i == 0 or word != words[i - 1])


def _band(svg: ElementTree.Element, band: Band, x: Axis, y: Axis, styles: dict[str, str]) -> None:
    across, low, high = x(band.x), y.clamped(band.low), y.clamped(band.high)
    there = _data(np.stack([across, low], axis=1), (x, y))
    back = _data(np.stack([across, high], axis=1)[::-1], (x, y))
    kind = f"band {styles[band.group]}" + (" emphasised" if band.group in EMPHASISED else "")
    ElementTree.SubElement(svg, "path", {"d": f"{there}L{back[1:]}Z", "class": kind})


def _bars(svg: ElementTree.Element, bars: Bars, x: Axis, y: Axis, styles: dict[str, str]) -> None:
    edges, tops = x(bars.edges), y(bars.heights)
    for left, right, top, height in zip(edges[:-1], edges[1:], tops, bars.heights, strict=True):
        if height > 0:
            shape = {
                "x": f"{left:.1f}",
                "y": f"{top:.1f}",
                "width": f"{right - left:.1f}",
                "height": f"{y.start - top:.1f}",
            }
            ElementTree.SubElement(svg, "rect", shape | {"class": f"bar {styles[bars.group]}"})


def _right(svg: ElementTree.Element, panel: Panel, x: Axis, styles: dict[str, str]) -> None:
    """Lines on an axis of their own, to the right."""
    values = [v for line in panel.right for v in line.y]
    y = Axis(*_range(values, "linear", 0.04), "linear", HEIGHT - BOTTOM, TOP)
    for line in panel.right:
        _line(svg, line, x, y, styles)
    for value, at in zip(y.ticks(), y(y.ticks()), strict=True):
        _tick(svg, value, "linear", x.end + 6, at + 4.5, "start")
    middle = (y.start + y.end) / 2
    label = _text(svg, panel.right_label, WIDTH - 6, middle, "middle", "label")
    label.set("transform", f"rotate(-90 {WIDTH - 6:g} {middle:.1f})")


def _path(svg: ElementTree.Element, points: list[tuple[float, float]], kind: str) -> None:
    data = "L".join(f"{px:.1f} {py:.1f}" for px, py in points)
    ElementTree.SubElement(svg, "path", {"d": f"M{data}", "class": kind})
