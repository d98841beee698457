"""What code imports from `IPython.display`, for images without IPython."""

import base64
import html
import importlib.machinery
import json
import mimetypes
import os

from forkd_guest_display import clear_output, display, publish_display_data, update_display


class DisplayHandle:
    def __init__(self, display_id=None):
        self.display_id = display_id or os.urandom(16).hex()

    def __repr__(self):
        return "<DisplayHandle display_id=%s>" % self.display_id

    def display(self, value, **options):
        display(value, **options)

    def update(self, value, **options):
        update_display(value, **options)


class DisplayObject:
    """Data, or the file or address where it is."""

    _binary = False

    def __init__(self, data=None, url=None, filename=None, metadata=None, **_ignored):
        data = os.fspath(data) if isinstance(data, os.PathLike) else data
        if isinstance(data, str) and data.startswith("http") and url is None:
            data, url, filename = None, data, None
        elif isinstance(data, str) and filename is None and _is_path(data):
            data, url, filename = None, None, data
        self.data, self.url, self.metadata = data, url, metadata
        self.filename = None if filename is None else os.fspath(filename)
        self.reload()

    def __repr__(self):
        return "<%s.%s object>" % (type(self).__module__, type(self).__name__)

    def reload(self):
        if self.filename is not None:
            with open(self.filename, "rb") as file:
                self.data = self._decoded(file.read())
        elif self.url is not None:
            import urllib.request

            with urllib.request.urlopen(self.url) as response:
                self.data = self._decoded(response.read())

    def _decoded(self, data):
        return data if self._binary else data.decode("utf-8", "replace")


class TextDisplayObject(DisplayObject):
    pass


class Pretty(TextDisplayObject):
    def _repr_mimebundle_(self, **_ignored):
        return {"text/plain": self.data}


class HTML(TextDisplayObject):
    def _repr_html_(self):
        return self.data

    __html__ = _repr_html_


class Markdown(TextDisplayObject):
    def _repr_markdown_(self):
        return self.data


class Latex(TextDisplayObject):
    def _repr_latex_(self):
        return self.data


class Math(TextDisplayObject):
    def _repr_latex_(self):
        return r"$\displaystyle %s$" % self.data.strip("$")


class SVG(DisplayObject):
    def _repr_svg_(self):
        begin, end = self.data.find("<svg"), self.data.rfind("</svg>")
        return self.data[max(begin, 0) : end + len("</svg>") if end > begin else None]


class JSON(DisplayObject):
    def _repr_json_(self):
        return json.loads(self.data) if isinstance(self.data, str) else self.data


class Javascript(TextDisplayObject):
    def _repr_javascript_(self):
        return self.data


class Code(TextDisplayObject):
    def __repr__(self):
        return self.data

    def _repr_html_(self):
        return "<pre>" + html.escape(self.data) + "</pre>"


class Image(DisplayObject):
    _binary = True

    def __init__(
        self, data=None, url=None, filename=None, format=None, embed=None, width=None, height=None, alt=None, **options
    ):
        by_address = filename is None and (data is None or isinstance(data, str) and data.startswith("http"))
        self.format, self.width, self.height, self.alt = format, width, height, alt
        self.embed = not by_address if embed is None else embed
        super().__init__(data, url, filename, **options)

    def reload(self):
        if self.embed or self.url is None:
            super().reload()

    def _repr_mimebundle_(self, **_ignored):
        if self.embed:
            return {self._type(): base64.b64encode(self.data).decode()}
        size = {"width": self.width, "height": self.height, "alt": self.alt}
        return {"text/html": "<img src=%s%s/>" % (_quoted(self.url), _attributes(size))}

    def _type(self):
        for begin, kind in ((b"\x89PNG", "png"), (b"\xff\xd8", "jpeg"), (b"GIF8", "gif"), (b"RIFF", "webp")):
            if self.data.startswith(begin):
                return "image/" + kind
        return "image/" + {"jpg": "jpeg"}.get(self.format, self.format or "png")


class Video(DisplayObject):
    _binary = True
    _element = "video"

    def __init__(self, data=None, url=None, filename=None, embed=False, mimetype=None, width=None, height=None, **options):
        self.embed, self.mimetype = embed, mimetype
        self.attributes = {"width": width, "height": height}
        super().__init__(data, url, filename, **options)

    def reload(self):
        if self.embed:
            super().reload()

    def _repr_html_(self):
        source = self.filename or self.url
        if self.embed or source is None:
            kind = self.mimetype or mimetypes.guess_type(source or "")[0] or self._element + "/" + self._usual
            source = "data:%s;base64,%s" % (kind, base64.b64encode(self.data).decode())
        return "<%s controls%s src=%s></%s>" % (self._element, _attributes(self.attributes), _quoted(source), self._element)

    _usual = "mp4"


class Audio(Video):
    _element, _usual = "audio", "wav"

    def __init__(self, data=None, filename=None, url=None, embed=None, rate=None, autoplay=False, normalize=True, **options):
        if data is not None and not isinstance(data, (str, bytes, os.PathLike)):
            data = _wave(data, rate, normalize)
        super().__init__(data, url, filename, url is None if embed is None else embed, **options)
        self.attributes = {"autoplay": "autoplay" if autoplay else None}


class IFrame:
    def __init__(self, src, width, height, extras=None, **parameters):
        from urllib.parse import urlencode

        self.src = src + ("?" + urlencode(parameters) if parameters else "")
        self.width, self.height, self.extras = width, height, extras or []

    def _repr_html_(self):
        size = _attributes({"width": self.width, "height": self.height})
        words = " ".join(["frameborder=\"0\" allowfullscreen", *self.extras])
        return "<iframe%s src=%s %s></iframe>" % (size, _quoted(self.src), words)


class YouTubeVideo(IFrame):
    def __init__(self, id, width=400, height=300, **options):
        super().__init__("https://www.youtube.com/embed/" + id, width, height, **options)


class FileLink:
    def __init__(self, path, url_prefix="", **_ignored):
        self.path, self.url_prefix = os.fspath(path), url_prefix

    def __repr__(self):
        return os.path.abspath(self.path)

    def _repr_html_(self):
        return "<a href=%s target=\"_blank\">%s</a><br>" % (_quoted(self.url_prefix + self.path), html.escape(self.path))


def _is_path(text):
    try:
        return os.path.exists(text)
    except ValueError:
        return False


def _quoted(text):
    return '"%s"' % html.escape(str(text))


def _attributes(values):
    return "".join(" %s=%s" % (name, _quoted(value)) for name, value in values.items() if value is not None)


def _wave(samples, rate, normalize):
    """Numbers, or one row of them per channel, as a sound file."""
    import io
    import wave

    import numpy

    samples = numpy.atleast_2d(numpy.asarray(samples, dtype=float))
    scale = numpy.abs(samples).max() if normalize else 1
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(len(samples))
        sound.setsampwidth(2)
        sound.setframerate(rate)
        sound.writeframes((samples.T / (scale or 1) * 32767).astype("<i2").tobytes())
    return file.getvalue()


def _display_as(kind):
    def show(*objects, raw=False, **_ignored):
        display(*[{kind: value} if raw else value for value in objects], raw=raw, include=[kind])

    return show


_CLASSES = (DisplayHandle, DisplayObject, TextDisplayObject, Pretty, HTML, Markdown, Latex, Math, SVG, JSON, Javascript)
_CLASSES += (Code, Image, Video, Audio, IFrame, YouTubeVideo, FileLink)
_PUBLIC = {one.__name__: one for one in (display, publish_display_data, update_display, clear_output) + _CLASSES}
for _name, _kind in {
    "pretty": "text/plain",
    "html": "text/html",
    "markdown": "text/markdown",
    "svg": "image/svg+xml",
    "png": "image/png",
    "jpeg": "image/jpeg",
    "pdf": "application/pdf",
    "latex": "text/latex",
    "json": "application/json",
    "javascript": "application/javascript",
}.items():
    _PUBLIC["display_" + _name] = _display_as(_kind)
for _class in _CLASSES:
    _class.__module__ = "IPython.lib.display" if _class in (Audio, IFrame, YouTubeVideo, FileLink) else "IPython.core.display"

_PACKAGES = ("IPython", "IPython.core", "IPython.lib")
_MODULES = ("IPython.display", "IPython.core.display", "IPython.core.display_functions", "IPython.lib.display")


class _Loader:
    def create_module(self, spec):
        return None

    def exec_module(self, module):
        if module.__name__ in _MODULES:
            module.__dict__.update(_PUBLIC, __all__=list(_PUBLIC))
        elif module.__name__ == "IPython":
            # Libraries ask whether they run in IPython's shell.
            module.__dict__.update(version_info=(8, 0, 0), __version__="8.0.0", get_ipython=lambda: None)
            importlib.import_module("IPython.display")


def find_spec(name):
    if name not in _PACKAGES + _MODULES:
        return None
    return importlib.machinery.ModuleSpec(name, _Loader(), is_package=name in _PACKAGES)
