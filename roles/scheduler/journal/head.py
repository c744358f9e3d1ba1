"""How a journal begins: how the scheduler is set up, what stands there, and what it has in mind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from koord import seams
from koord.config.model import wire
from koord.version import VERSION
from roles.scheduler.journal.lines import FORMAT, Beginning

if TYPE_CHECKING:
    from roles.scheduler.cluster.cache import Cache
    from roles.scheduler.framework.context import State
    from roles.scheduler.observing.observer import Observer
    from roles.scheduler.options import Options


def beginning(options: Options, state: State, cache: Cache, observer: Observer, *, settled: bool) -> Beginning:
    """All that decisions from now on depend on, as far as it is told by objects, random numbers, nominations and assumed pods. `settled`:
    nothing is under way, so that objects tell all."""
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
        "assumed": cache.assumed(),
        "settled": settled,
    }
    return Beginning(head, observer.standing() if observer.attached else ())
