"""Objects as results: text, and the richer forms that an object offers."""

import json
import sys

# Bytes of a field as it is sent. A result crosses as one message, and the daemon takes lines of 16 MiB.
MAX_FIELD = 8 << 20
MAX_TABLE_CELLS = 100_000

# Set by the driver: takes a dictionary of result fields.
send = None

_METHODS = (
    ("_repr_html_", "html"),
    ("_repr_markdown_", "markdown"),
    ("_repr_svg_", "svg"),
    ("_repr_png_", "png"),
    ("_repr_jpeg_", "jpeg"),
    ("_repr_pdf_", "pdf"),
    ("_repr_latex_", "latex"),
    ("_repr_json_", "json"),
    ("_repr_javascript_", "javascript"),
    ("_repr_e2b_data_", "data"),
    ("_repr_e2b_chart_", "chart"),
)
_TYPES = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
    "e2b/data": "data",
    "e2b/chart": "chart",
}


def display(*objects, raw=False, include=None, exclude=None, display_id=None, **_ignored):
    """IPython's function. `raw` objects are dictionaries by MIME type."""
    for value in objects:
        found = _bounded(_from_types(value)) if raw else fields(value)
        if include is not None:
            found = {key: part for key, part in found.items() if key in _names(include)}
        if exclude is not None:
            found = {key: part for key, part in found.items() if key not in _names(exclude)}
        if found:
            send(found, False)
    if display_id:
        import forkd_guest_ipython

        return forkd_guest_ipython.DisplayHandle(None if display_id is True else display_id)


def publish_display_data(data, *_metadata, update=False, **_ignored):
    if not update:
        display(data, raw=True)


def update_display(*_objects, **_ignored):
    """A result that was sent stays as it is, as on E2B."""


def clear_output(*_arguments, **_ignored):
    """What was printed stays, as on E2B."""


def fields(value):
    """The fields of a result. An error in `repr` is the caller's; one in a richer form leaves that form out."""
    found = {}
    if _is_figure(value):
        found["png"] = _figure_png(value)
        found["chart"] = _figure_chart(value)
    else:
        _from_bundle(value, found)
        _from_collection(value, found)
        _from_methods(value, found)
        _from_table(value, found)
    if "text" not in found:
        found["text"] = repr(value)
    return _bounded(found)


def show_figures():
    """Every open matplotlib figure becomes a result, and is closed."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    # A module is there before its import has finished, and stays when the import fails.
    if pyplot is None or not hasattr(pyplot, "get_fignums"):
        return
    for number in pyplot.get_fignums():
        figure = pyplot.figure(number)
        try:
            if figure.get_axes() or figure.texts or figure.images:
                send(fields(figure), False)
        finally:
            pyplot.close(figure)


def close_figure(value):
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None and _is_figure(value):
        pyplot.close(value)


def _is_figure(value):
    module = sys.modules.get("matplotlib.figure")
    return module is not None and isinstance(value, getattr(module, "Figure", ()))


def _figure_png(figure):
    import io

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", bbox_inches="tight")
    return _base64(buffer.getvalue())


def _figure_chart(figure):
    """After the picture: drawing gives the ticks their labels."""
    import warnings

    try:
        import forkd_guest_charts

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return forkd_guest_charts.chart(figure)
    except Exception:
        return None  # an unusual figure, which is still shown as a picture


def _from_bundle(value, found):
    bundle = _call(value, "_repr_mimebundle_")
    if isinstance(bundle, tuple):
        bundle = bundle[0] if bundle else None
    if isinstance(bundle, dict):
        found.update(_from_types(bundle))


def _from_types(bundle):
    found, extra = {}, {}
    for kind, part in bundle.items():
        key = _TYPES.get(kind)
        if key is None:
            extra[str(kind)] = part
        else:
            found[key] = _plain(key, part)
    if extra:
        found["extra"] = extra
    return found


def _names(types):
    return [_TYPES.get(kind, "extra") for kind in types]


def _from_collection(value, found):
    if isinstance(value, (list, dict)) and "json" not in found:
        import forkd_guest_plain

        try:
            found["json"] = forkd_guest_plain.plain(value)
        except Exception:
            pass  # some values have no JSON form, or there are too many


def _from_methods(value, found):
    for method, key in _METHODS:
        if key in found:
            continue
        part = _call(value, method)
        if isinstance(part, tuple):  # data and metadata
            part = part[0] if part else None
        if part is not None:
            found[key] = _plain(key, part)


def _from_table(value, found):
    pandas = sys.modules.get("pandas")
    frame = getattr(pandas, "DataFrame", None)
    if frame is None or not isinstance(value, frame) or value.size > MAX_TABLE_CELLS:
        return
    try:
        table = json.loads(value.to_json(orient="split", date_format="iso"))
        columns = zip(*table["data"]) if table["data"] else ([] for _ in table["columns"])
        found["data"] = {str(name): list(column) for name, column in zip(table["columns"], columns)}
    except Exception:
        pass  # columns of objects that are no JSON; the table is still there as text and HTML


def _call(value, name):
    if isinstance(value, type):
        return None
    try:
        method = getattr(value, name, None)
        return method() if callable(method) else None
    except Exception:
        return None


def _plain(key, part):
    if key in ("json", "data", "chart"):
        return part
    if isinstance(part, (bytes, bytearray)):
        return _base64(bytes(part))
    return part if isinstance(part, str) else str(part)


def _bounded(found):
    """Leaves out fields that are too large, and shortens the text. The size of other types is checked with the whole message."""
    bounded = {}
    for key, part in found.items():
        if key == "text":
            bounded[key] = cut(part, MAX_FIELD)
        elif part is not None and not (isinstance(part, str) and _size(part) > MAX_FIELD):
            bounded[key] = part
    return bounded


def cut(text, most):
    """As much of the text as fits into `most` bytes of JSON, where a character can be up to twelve."""
    if _size(text) <= most:
        return text
    fits, too_much = 0, min(len(text), most)
    while too_much - fits > most >> 8:
        middle = (fits + too_much) // 2
        if _size(text[:middle]) <= most:
            fits = middle
        else:
            too_much = middle
    return text[:fits] + "\n[cut: %d characters in all]" % len(text)


def _size(text):
    # Short enough, whatever is in it: there is no need to look.
    return 0 if len(text) <= 1 << 16 else len(json.dumps(text))


def _base64(data):
    import base64

    return base64.b64encode(data).decode("ascii")
