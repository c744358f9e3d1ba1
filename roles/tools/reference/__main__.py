"""`python -m roles.tools.reference DIRECTORY`: write the reference pages."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from roles.tools.reference import chart, commands, configuration, crds, gates, metrics, names, trust

PAGES: Mapping[str, Callable[[], str]] = {
    "annotations.md": names.render,
    "api.md": crds.render,
    "chart.md": chart.render,
    "commands.md": commands.render,
    "configuration.md": configuration.render,
    "feature-gates.md": gates.render,
    "metrics.md": metrics.render,
    "trust.md": trust.render,
}


def main(arguments: Sequence[str]) -> int:
    """Entry point; returns the exit status."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m roles.tools.reference DIRECTORY", file=sys.stderr)
        return 2
    directory = Path(arguments[0])
    directory.mkdir(parents=True, exist_ok=True)
    for name, render in PAGES.items():
        (directory / name).write_text(render(), encoding="utf-8")
        print(directory / name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
