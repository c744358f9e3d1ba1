"""Every plugin, by the name that a configuration uses. One row a plugin."""

from __future__ import annotations

from typing import Any

from roles.descheduler.plugins.lownodeload.plugin import LowNodeLoad

# Plugins that run in a round: name -> how it is made from its arguments and the interval between rounds, in seconds.
PLUGINS: tuple[tuple[str, frozenset[str], Any], ...] = ((LowNodeLoad.name, LowNodeLoad.points, LowNodeLoad),)

# MigrationController has no turn of its own in a round: it says which pods may leave (filter) and takes them away (evict).
POINTS: dict[str, frozenset[str]] = {
    **{name: points for name, points, _ in PLUGINS},
    "MigrationController": frozenset({"evict", "filter"}),
}
