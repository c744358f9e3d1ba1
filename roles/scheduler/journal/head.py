"""How a journal begins: how the scheduler is set up, what stands there, and what it has in mind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from koord import seams
from koord.config.model import wire
from koord.version import VERSION
from roles.scheduler.journal.lines import FORMAT, Beginning

if TYPE_CHECKING:
    from roles.scheduler.app import App


def beginning(app: App) -> Beginning:
    """All that decisions from now on depend on, as far as it is told by objects, random numbers, nominations and assumed pods."""
    options, state = app.options, app.engine.state
    nominations = state.nominations
    head: dict[str, Any] = {
        "format": FORMAT,
        "koord": VERSION,
        "time": seams.now(),
        "config": wire(options.config),
        "pluginPaths": options.plugin_paths,
        "featureGates": options.gates,
        "networkTopology": options.network_topology,
        "maxUnschedulable": options.max_unschedulable,
        "random": state.random.getstate(),
        "nextStart": state.next_start,
        "nominations": [(pod.uid, node) for node in nominations.nodes() for pod in nominations.on(node)],
        "assumed": app.cache.assumed(),
        "settled": settled_now(app),
    }
    return Beginning(head, app.observer.standing() if app.observer.attached else ())


def settled_now(app: App) -> bool:
    """Whether nothing is under way, so that objects tell all."""
    scheduler, state = app.scheduler, app.engine.state
    return not (
        len(scheduler.placements) or len(app.waiting) or app.cache.assumed_count or len(state.nominations) or state.evictions.victim_count
    )
