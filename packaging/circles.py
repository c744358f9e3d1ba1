"""Fails when modules of koord import one another in a circle, type imports and imports inside functions included: `make contracts`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Set
from graphlib import CycleError, TopologicalSorter

import grimp


def circle(imports: Mapping[str, Set[str]]) -> list[str]:
    """One circle of the graph (module -> what it imports), the first module again at the end; empty when there is none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def main() -> int:
    """Print a circle, if there is one. Returns the exit code."""
    graph = grimp.build_graph("koord", "roles", cache_dir=None, exclude_type_checking_imports=False)
    found = circle({module: graph.find_modules_directly_imported_by(module) for module in graph.modules})
    if found:
        print("modules import one another in a circle:\n  " + "\n  imports ".join(found), file=sys.stderr)
        return 1
    print(f"no circles among {len(graph.modules)} modules, type imports included")
    return 0


if __name__ == "__main__":
    sys.exit(main())
