"""One way to write GPUs within a pod: the pod webhook translates regular containers and leaves init containers as they are (SCH-DEV-02)."""

from __future__ import annotations

import contextlib

from koord.api import names
from koord.api.deprecated import status_amounts
from koord.api.objects import Pod
from koord.api.quantity import QuantityError, format_decimal, parse_value

_WHOLE = 100
_GPU, _SHARED = names.RESOURCE_GPU, names.RESOURCE_GPU_SHARED
_PARTS = frozenset((names.RESOURCE_GPU_CORE, names.RESOURCE_GPU_MEMORY_RATIO))


def translate_rest(pod: Pod) -> None:
    """Write `koordinator.sh/gpu` of init containers, and of the status, as the regular ones write theirs, in place, where those use core
    and ratio: added up under two names, neither would be what the pod needs."""
    spec = pod.spec
    if not any(container.resources.requests and _PARTS.intersection(container.resources.requests) for container in spec.containers):
        return
    asked = (amounts for container in spec.init_containers for amounts in (container.resources.requests, container.resources.limits))
    for amounts in (*asked, *status_amounts(pod)):
        if amounts and _GPU in amounts:
            with contextlib.suppress(QuantityError):  # told by whoever adds the amounts up
                percent = parse_value(amounts[_GPU])
                shared = format_decimal(percent // _WHOLE if percent > _WHOLE else 1)
                whole = amounts.pop(_GPU)
                amounts.update({_SHARED: shared, **dict.fromkeys(_PARTS, whole), **amounts})
