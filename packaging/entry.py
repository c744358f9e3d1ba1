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


if __name__ == "__main__":
    plugin_directories()
    sys.exit(main())
