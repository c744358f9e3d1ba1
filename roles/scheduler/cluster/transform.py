"""What feature gates change in every pod before anything else sees it (SCH-FW-08)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from koord.api import names
from koord.api.annotations import parse_replace_resources
from koord.api.deprecated import status_amounts
from koord.api.objects import Pod
from koord.api.priority import pod_priority_value
from koord.api.quantity import parse_milli

Transform = Callable[[Pod], Pod]

_POLICIES = (names.PREEMPTION_POLICY_NEVER, names.PREEMPTION_POLICY_LOWER)
_replace = msgspec.structs.replace


def transforms(gates: Mapping[str, bool]) -> tuple[Transform, ...]:
    """Those that the gates switch on, in the order they are applied."""
    table = (
        ("PriorityTransformer", set_priority),
        ("PreemptionPolicyTransformer", set_preemption_policy),
        ("ReplaceResourcesTransformer", replace_resources),
    )
    return tuple(transform for gate, transform in table if gates.get(gate))


def set_priority(pod: Pod) -> Pod:
    """`spec.priority` where it is not set: the value of the pod's priority class."""
    return _replace(pod, spec=_replace(pod.spec, priority=pod_priority_value(pod)))


def set_preemption_policy(pod: Pod) -> Pod:
    """The policy that the label names; Never when it names none."""
    wanted = pod.metadata.labels.get(names.LABEL_POD_PREEMPTION_POLICY, "")
    policy = wanted if wanted in _POLICIES else names.PREEMPTION_POLICY_NEVER
    return _replace(pod, spec=_replace(pod.spec, preemption_policy=policy))


def replace_resources(pod: Pod) -> Pod:
    """Resources renamed or erased as the annotation says; what `cpu` becomes is counted in milli-CPU. A target that is there stays."""
    renames = parse_replace_resources(pod.metadata.annotations) if pod.metadata.annotations else {}
    if not renames:
        return pod
    spec = pod.spec
    holders = [container.resources for container in (*spec.containers, *spec.init_containers)]
    if spec.resources is not None:
        holders.append(spec.resources)
    asked = (amounts for holder in holders for amounts in (holder.requests, holder.limits))
    for resources in (*asked, spec.overhead, *status_amounts(pod)):
        for source, target in renames.items():
            if source not in resources:
                continue
            amount = resources.pop(source)
            if target and target not in resources:
                resources[target] = parse_milli(amount) if source == names.RESOURCE_CPU and target != source else amount
    return pod
