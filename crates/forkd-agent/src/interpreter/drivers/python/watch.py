"""Prepares libraries when they are imported, so that nothing of them is loaded for those who do not use them."""

import sys

import forkd_guest_display as display


class _Watch:
    def __init__(self):
        self.busy = False

    def find_spec(self, name, path=None, target=None):
        prepare = _PREPARE.get(name)
        if prepare is None or self.busy:
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

        def exec_module(module):
            run(module)
            prepare(module)

        spec.loader.exec_module = exec_module
        return spec


class _WithoutIPython:
    """The last finder: asked when IPython is not installed."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] != "IPython":
            return None
        import forkd_guest_ipython

        return forkd_guest_ipython.find_spec(name)


def _prepare_matplotlib(module):
    import os

    if "MPLBACKEND" not in os.environ:
        module.rcParams["backend"] = "Agg"


def _prepare_pyplot(module):
    def show(*_arguments, **_options):
        display.show_figures()

    module.show = show


def _prepare_pillow(module):
    """An image that is saved under a name is shown, as on E2B."""
    write = module.Image.save

    def save(self, fp, *arguments, **options):
        if isinstance(fp, str):
            _try_to_show(self)
        return write(self, fp, *arguments, **options)

    module.Image.save = save


def _prepare_image_show(module):
    class Viewer(module.Viewer):
        def show(self, image, **_options):
            _try_to_show(image)
            return 1

    # Before those that look for a program and a screen.
    module.register(Viewer, -1)


def _try_to_show(image):
    try:
        display.display(image)
    except Exception:
        pass  # saving it matters more


def _prepare_ipython(module):
    """IPython's own function prints, since its shell does not run here."""
    for name in ("display", "publish_display_data", "update_display", "clear_output"):
        setattr(module, name, getattr(display, name))


_PREPARE = {
    "matplotlib": _prepare_matplotlib,
    "matplotlib.pyplot": _prepare_pyplot,
    "PIL.Image": _prepare_pillow,
    "PIL.ImageShow": _prepare_image_show,
    "IPython.core.display_functions": _prepare_ipython,
}


def start():
    sys.meta_path.insert(0, _Watch())
    sys.meta_path.append(_WithoutIPython())
