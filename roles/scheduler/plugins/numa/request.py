"""What a pod asks of CPUs and NUMA nodes, read once per shape (SCH-NUMA-01, SCH-NUMA-06)."""

from __future__ import annotations

from dataclasses import dataclass

from koord.accounting.resources import ResourceVector
from koord.api import names
from koord.api.annotations import AnnotationError, ResourceSpec, parse_numa_topology_spec, parse_resource_spec
from koord.api.priority import PriorityClass
from koord.api.qos import QoSClass, qos_raw
from roles.scheduler.cluster.podinfo import PodShape
from roles.scheduler.framework.status import SUCCESS, Status, error, unresolvable
from roles.scheduler.plugins.numa.picks import FULL, SPREAD
from roles.scheduler.plugins.topology_manager.hints import Policy

NOT_INTEGER = "the requested CPUs must be integer"

_DEFAULT = "Default"
_REQUIRED = "Required"
_BINDING = (FULL, SPREAD)
_NONE_SPEC = ResourceSpec()


@dataclass(frozen=True, slots=True)
class Request:
    """`amounts` are the positive requests in base units. `required` and `preferred` are bind policies that the pod itself wants, `binds`
    whether that makes it a CPU-bound pod; nodes may bind others too. `status` refuses the pod wherever it goes."""

    amounts: ResourceVector
    status: Status = SUCCESS
    binds: bool = False
    required: str = ""
    preferred: str = ""
    exclusive: str = ""
    numa_policy: Policy = Policy.NONE
    exclusive_use: bool = False
    exclusive_of_all: bool = False  # the pod asks for exclusive use in so many words: pods that share CPUs count as users, too

    @property
    def milli(self) -> int:
        """The CPU request in milli-CPU."""
        return self.amounts.get(names.RESOURCE_CPU, 0)

    @property
    def cpus(self) -> int:
        """The CPU request in whole CPUs."""
        return self.milli // 1000


def request_of(shape: PodShape, default_policy: str) -> Request:
    """The request of a shape under a defaultCPUBindPolicy; kept with the shape."""
    key = ("NodeNUMAResource", default_policy)
    found: Request | None = shape.memo.get(key)
    if found is None:
        found = shape.memo[key] = _read(shape, default_policy)
    return found


def _read(shape: PodShape, default_policy: str) -> Request:
    amounts = {name: value for name, value in shape.amounts.items() if value > 0}
    try:
        spec = parse_resource_spec(shape.annotations) or _NONE_SPEC
        topology = parse_numa_topology_spec(shape.annotations)
        numa_policy = _numa_policy(topology.numa_topology_policy if topology is not None else "")
    except AnnotationError as problem:
        return Request(amounts, error(str(problem)))
    exclusive_use = topology.single_numa_node_exclusive if topology is not None else ""
    if numa_policy and not exclusive_use:
        exclusive_use = _REQUIRED
    required, preferred, binds = "", "", False
    if qos_raw(shape.labels) in (QoSClass.LSE, QoSClass.LSR) and shape.priority_class is PriorityClass.PROD:
        required = default_policy if spec.required_cpu_bind_policy == _DEFAULT else spec.required_cpu_bind_policy
        preferred = default_policy if spec.preferred_cpu_bind_policy in ("", _DEFAULT) else spec.preferred_cpu_bind_policy
        milli = amounts.get(names.RESOURCE_CPU, 0)
        if (required or preferred) in _BINDING:
            if milli % 1000:
                return Request(amounts, unresolvable(NOT_INTEGER))
            binds = milli > 0
    return Request(
        amounts,
        binds=binds,
        required=required,
        preferred=preferred,
        exclusive=spec.preferred_cpu_exclusive_policy,
        numa_policy=numa_policy,
        exclusive_use=exclusive_use == _REQUIRED,
        exclusive_of_all=topology is not None and topology.single_numa_node_exclusive == _REQUIRED,
    )


def _numa_policy(text: str) -> Policy:
    try:
        return Policy(text)
    except ValueError:
        accepted = ", ".join(policy for policy in Policy if policy)
        raise AnnotationError(
            names.ANNOTATION_NUMA_TOPOLOGY_SPEC, f"numaTopologyPolicy {text!r} is not known; accepted: {accepted}"
        ) from None
