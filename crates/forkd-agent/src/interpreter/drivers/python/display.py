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
}


def display(*objects, **_ignored):
    for value in objects:
        send(fields(value), False)


def fields(value):
    """The fields of a result. An error in `repr` is the caller's; one in a richer form leaves that form out."""
    found = {}
    figure = _is_figure(value)
    if figure:
        found["png"] = _figure_png(value)
    else:
        _from_bundle(value, found)
        _from_methods(value, found)
        _from_table(value, found)
    if "text" not in found:
        found["text"] = repr(value)
    return {key: _bounded(key, part) for key, part in found.items() if part is not None}


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


def _from_bundle(value, found):
    bundle = _call(value, "_repr_mimebundle_")
    if isinstance(bundle, tuple):
        bundle = bundle[0] if bundle else None
    if not isinstance(bundle, dict):
        return
    extra = {}
    for kind, part in bundle.items():
        key = _TYPES.get(kind)
        if key is None:
            extra[str(kind)] = part
        else:
            found[key] = _plain(key, part)
    if extra:
        found["extra"] = extra


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
    if key in ("json", "extra"):
        return part
    if isinstance(part, (bytes, bytearray)):
        return _base64(bytes(part))
    return part if isinstance(part, str) else str(part)


def _bounded(key, part):
    if not isinstance(part, str):
        return part
    if key == "text":
        return cut(part, MAX_FIELD)
    return part if _size(part) <= MAX_FIELD else None


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


class _Watch:
    """Waits for matplotlib to be imported, so that nothing of it is loaded for those who do not use it."""

    def __init__(self):
        self.busy = False

    def find_spec(self, name, path=None, target=None):
        if name not in ("matplotlib", "matplotlib.pyplot") or self.busy:
            return None
        import importlib.util

        self.busy = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.busy = False
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module
        prepare = _prepare_matplotlib if name == "matplotlib" else _prepare_pyplot

        def exec_module(module):
            run(module)
            prepare(module)

        spec.loader.exec_module = exec_module
        return spec


def _prepare_matplotlib(module):
    import os

    if "MPLBACKEND" not in os.environ:
        module.rcParams["backend"] = "Agg"


def _prepare_pyplot(module):
    def show(*_arguments, **_options):
        show_figures()

    module.show = show


def watch_matplotlib():
    sys.meta_path.insert(0, _Watch())
