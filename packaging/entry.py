"""Entry point of the frozen executable."""

import os
import sys

from koord.cli import main


def plugin_directories() -> None:
    """Let packages that were installed beside the executable be found, with their entry points.

    A frozen interpreter takes no notice of PYTHONPATH. KOORD_PLUGIN_DIRS names directories made by `pip install --target`, separated by
    colons. They come last: what koord brings along cannot be replaced.
    """
    for directory in filter(None, os.environ.get("KOORD_PLUGIN_DIRS", "").split(":")):
        if directory not in sys.path:
            sys.path.append(directory)


def clean_library_path() -> None:
    """Give what koord starts (tc, iptables, credential plugins, the sandbox's pods) the libraries of the machine, not those in the bundle.

    The bootloader points LD_LIBRARY_PATH into the bundle and keeps the caller's value in LD_LIBRARY_PATH_ORIG. The loader of this
    process has read it already, so what koord itself loads later is still found.
    """
    before = os.environ.pop("LD_LIBRARY_PATH_ORIG", None)
    if not getattr(sys, "frozen", False):
        return
    if before is None:
        os.environ.pop("LD_LIBRARY_PATH", None)
    else:
        os.environ["LD_LIBRARY_PATH"] = before


if __name__ == "__main__":
    clean_library_path()
    plugin_directories()
    sys.exit(main())
