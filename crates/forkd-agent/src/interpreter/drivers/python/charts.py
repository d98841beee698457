"""What a matplotlib figure shows, as data: a result's `chart`, in E2B's format."""

import math
import re

import matplotlib.category
import matplotlib.collections
import matplotlib.dates
import matplotlib.lines
import matplotlib.patches
import matplotlib.text
import matplotlib.ticker

# A figure with more points is shown as a picture only.
MAX_POINTS = 100_000
# Boxes × lines of one plot.
MAX_COMPARED = 1_000_000

_UNIT = re.compile(r"\s\((.*?)\)|\[(.*?)\]")
_DATES = getattr(matplotlib.dates, "_SwitchableDateConverter", ())


def chart(figure):
    """None for a figure without data, or with too much."""
    all_axes = figure.get_axes()
    if not any(axes.has_data() for axes in all_axes) or sum(map(_points, all_axes)) > MAX_POINTS:
        return None
    if len(all_axes) == 1:
        return _of_axes(all_axes[0])
    # Before matplotlib 3.8 there is no function for it.
    title = getattr(figure, "_suptitle", None)
    elements = [_of_axes(axes) for axes in all_axes]
    return {"type": "superchart", "title": title.get_text() if title else "", "elements": elements}


def _points(axes):
    lines = sum(len(line.get_xdata()) for line in axes.lines)
    return lines + sum(len(one.get_offsets()) for one in axes.collections) + len(axes.patches)


def _of_axes(axes):
    kind = _kind(axes)
    found = {"type": kind, "title": axes.get_title() or None, "elements": []}
    if kind in ("unknown", "pie"):
        found["elements"] = [_wedge(wedge) for wedge in axes.patches] if kind == "pie" else []
        return found
    _add_labels(found, axes)
    if kind in ("line", "scatter"):
        _add_ticks(found, "x", axes.xaxis)
        _add_ticks(found, "y", axes.yaxis)
        found["elements"] = _lines(axes) if kind == "line" else _scattered(axes)
        return found
    found["elements"], horizontal = _bars(axes) if kind == "bar" else _boxes(axes)
    if horizontal:
        for name in ("label", "unit"):
            found["x_" + name], found["y_" + name] = found["y_" + name], found["x_" + name]
    return found


def _kind(axes):
    shown = [one for one in axes._children if not isinstance(one, matplotlib.text.Text)]
    if all(isinstance(one, matplotlib.lines.Line2D) for one in shown):
        return "line"
    if all(isinstance(one, (matplotlib.patches.PathPatch, matplotlib.lines.Line2D)) for one in shown):
        return "box_and_whisker"
    shown = [one for one in shown if not (isinstance(one, matplotlib.lines.Line2D) and _is_straight(one))]
    for kind, artist in _KINDS:
        if all(isinstance(one, artist) for one in shown):
            return kind
    return "unknown"


_KINDS = (
    ("scatter", matplotlib.collections.PathCollection),
    ("pie", matplotlib.patches.Wedge),
    ("bar", matplotlib.patches.Rectangle),
)


def _is_straight(line):
    """From one point to another along an axis, as the lines of a grid are."""
    x, y = line.get_xdata(), line.get_ydata()
    return len(x) == len(y) == 2 and bool(x[0] == x[1] or y[0] == y[1])


def _add_labels(found, axes):
    for name, label in (("x", axes.get_xlabel()), ("y", axes.get_ylabel())):
        unit = _UNIT.search(label)
        found[name + "_label"] = label or None
        found[name + "_unit"] = (unit.group(1) or unit.group(2)) if unit else None


def _add_ticks(found, name, axis):
    ticks, labels = _ticks(axis)
    scale = axis.get_scale()
    if isinstance(_converter(axis), _DATES):
        scale = "datetime"
        ticks = [matplotlib.dates.num2date(tick).isoformat() for tick in ticks]
    elif scale == "linear" and isinstance(_converter(axis), matplotlib.category.StrCategoryConverter):
        scale = "categorical"
    found.update({name + "_ticks": ticks, name + "_tick_labels": labels, name + "_scale": scale})


def _ticks(axis):
    labels = [label.get_text() for label in axis.get_ticklabels()]
    return [float(tick) for tick in axis.get_ticklocs()], labels


def _converter(axis):
    # `converter` is deprecated from matplotlib 3.10 on.
    return axis.get_converter() if hasattr(axis, "get_converter") else axis.converter


def _lines(axes):
    elements = []
    for line in axes.lines:
        if not _is_straight(line):
            label = str(line.get_label())
            if label.startswith("_child"):
                label = "Line " + label[len("_child") :]
            elements.append({"label": label, "points": _pairs(zip(line.get_xdata(), line.get_ydata()))})
    return elements


def _scattered(axes):
    return [{"label": str(one.get_label()), "points": _pairs(one.get_offsets().tolist())} for one in axes.collections]


def _pairs(points):
    return [[_value(x), _value(y)] for x, y in points]


def _value(value):
    """A number or a text. Numbers that JSON does not have are null."""
    if isinstance(value, str):
        return str(value)
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if getattr(getattr(value, "dtype", None), "kind", None) == "M":
        return str(value.astype("datetime64[s]"))
    try:
        number = float(value)
    except TypeError:
        return None if value is None else str(value)
    return number if math.isfinite(number) else None


def _wedge(wedge):
    angle = _rounded(abs(float(wedge.theta2) - float(wedge.theta1)))
    return {"label": str(wedge.get_label()), "angle": angle, "radius": float(wedge.r)}


def _rounded(number):
    """Without the noise of calculations: to as many digits as on E2B, where large numbers lose too many."""
    number = float(number)
    magnitude = math.floor(math.log10(abs(number))) if number and math.isfinite(number) else 0
    return float("%.*g" % (8 - magnitude if magnitude < 3 else 12, number))


def _bars(axes):
    """The bars, and whether they are horizontal."""
    elements, horizontal = [], False
    for number, bars in enumerate(axes.containers):
        group = str(bars.get_label())
        if group.startswith("_"):
            group = "Group %d" % number
        horizontal = getattr(bars, "orientation", None) == "horizontal"
        if horizontal:
            names = _names(axes.yaxis, [bar.get_y() + bar.get_height() / 2 for bar in bars])
        else:
            names = _names(axes.xaxis, [bar.get_x() + bar.get_width() / 2 for bar in bars])
        for name, bar in zip(names, bars):
            value = bar.get_width() if horizontal else bar.get_height()
            elements.append({"label": name, "group": group, "value": _value(value)})
    return elements, horizontal


def _names(axis, places):
    """The labels of the ticks at these places if the ticks were set to them, or else the numbers or dates of the places."""
    ticks, labels = _ticks(axis)
    if isinstance(axis.get_major_locator(), (matplotlib.category.StrCategoryLocator, matplotlib.ticker.FixedLocator)):
        named = {round(tick, 6): label for tick, label in zip(ticks, labels)}
        found = [named.get(round(place, 6)) for place in places]
        if None not in found:
            return found
        if len(labels) == len(places):
            return labels  # groups of bars around each tick
    if isinstance(_converter(axis), _DATES):
        return [matplotlib.dates.num2date(place).isoformat() for place in places]
    return ["%.10g" % place for place in places]


def _boxes(axes):
    """The boxes, and whether they are horizontal. Whiskers, medians and outliers are lines of the axes."""
    boxes = [_rectangle(patch.get_path().vertices[:-1]) for patch in axes.patches]
    lines = [(_all_rounded(line.get_xdata()), _all_rounded(line.get_ydata()), line) for line in axes.lines]
    if len(boxes) * len(lines) > MAX_COMPARED:
        raise ValueError("too many boxes")
    # The median of a horizontal box is a vertical line.
    vertical = [(x, y) for x, y, _ in lines if len(x) == 2 and x[0] == x[1] and y[0] != y[1]]
    horizontal = any(_inside(box, x, y) for x, y in vertical for box in boxes)
    if horizontal:
        boxes = [(y, x) for x, y in boxes]
        lines = [(y, x, line) for x, y, line in lines]
    labels = _ticks(axes.yaxis if horizontal else axes.xaxis)[1]
    return [_box(box, lines, label) for box, label in zip(boxes, labels)], horizontal


def _box(box, lines, label):
    place, (first, third) = box
    found = {"label": label, "min": first, "first_quartile": first, "third_quartile": third, "max": third, "outliers": []}
    here = [(x, y, line) for x, y, line in lines if x and place[0] <= min(x) and max(x) <= place[1]]
    medians = []
    for x, y, _ in here:
        if len(x) != 2:
            continue
        if x[0] == x[1] and max(y) == first:
            found["min"] = min(y)
        elif x[0] == x[1] and min(y) == third:
            found["max"] = max(y)
        elif _inside(box, x, y):
            # The end of a whisker without length can be here, too, but is shorter.
            medians.append((first < y[0] < third, abs(x[1] - x[0]), y[0]))
    found["median"] = max(medians, key=lambda median: median[:2])[2]
    for _, y, line in here:
        if line.get_linestyle() == "None":
            found["outliers"] += [value for value in y if not found["min"] <= value <= found["max"]]
    return found


def _inside(box, x, y):
    return all(low <= min(numbers) and max(numbers) <= high for (low, high), numbers in zip(box, (x, y)))


def _rectangle(corners):
    """By two opposite corners: between them, a box can have notches, also beyond the others."""
    opposite = corners[[0, len(corners) // 2]]
    return [sorted(_all_rounded(numbers)) for numbers in opposite.transpose()]


def _all_rounded(numbers):
    return [_rounded(number) for number in numbers]
