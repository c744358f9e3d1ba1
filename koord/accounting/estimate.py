"""What a pod will probably use before anyone has measured it (SCH-LA-06)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from koord.accounting.pods import pod_limits, pod_requests
from koord.accounting.resources import ResourceVector
from koord.api import names
from koord.api.priority import pod_priority_class, translate_resource_name

if TYPE_CHECKING:
    from koord.api.objects import Pod

# What a pod without requests counts as; factors do not apply to these.
DEFAULT_MILLI_CPU: Final = 250
DEFAULT_MEMORY: Final = 200 * 1024 * 1024

# Percent of the request that is taken as usage.
DEFAULT_SCALING_FACTORS: Final[Mapping[str, int]] = {names.RESOURCE_CPU: 85, names.RESOURCE_MEMORY: 70}

_DEFAULTS: Final[Mapping[str, int]] = {
    names.RESOURCE_CPU: DEFAULT_MILLI_CPU,
    names.RESOURCE_BATCH_CPU: DEFAULT_MILLI_CPU,
    names.RESOURCE_MEMORY: DEFAULT_MEMORY,
    names.RESOURCE_BATCH_MEMORY: DEFAULT_MEMORY,
}


def estimate_resource(name: str, request: int, limit: int, factor: int) -> int:
    """Estimated usage of one resource in its base unit.

    The larger of request and limit × ``factor`` percent, rounded half up and never above the limit; the default of the (translated)
    ``name`` when both are zero.
    """
    base = max(request, limit)
    if base <= 0:
        return _DEFAULTS.get(name, 0)
    estimated = (2 * base * factor + 100) // 200
    return min(estimated, limit) if limit > 0 else estimated


def estimate_pod(pod: Pod) -> ResourceVector:
    """Estimated usage of a pod by *native* resource name (a batch pod's batch-cpu is counted as ``cpu``, in milli), by default factors.

    A resource that the class has no name for estimates to 0. Raises QuantityError for a malformed quantity.
    """
    priority_class = pod_priority_class(pod)
    requests, limits = pod_requests(pod), pod_limits(pod)
    estimated: ResourceVector = {}
    for native, factor in DEFAULT_SCALING_FACTORS.items():
        name = translate_resource_name(priority_class, native)
        estimated[native] = estimate_resource(name, requests.get(name, 0), limits.get(name, 0), factor) if name else 0
    return estimated
