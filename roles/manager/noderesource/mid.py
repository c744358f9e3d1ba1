"""MidResource: what Mid pods may use of a node (MGR-NR-MID-01); pure.

dynamic: max(min(reclaimable, unused), 0) + trunc(unallocated × midUnallocatedPercent), capped at trunc(capacity × midThresholdPercent);
static: trunc(capacity × midStaticReservedPercent), same cap.
"""

from __future__ import annotations

from koord.api import names
from koord.api.objects import Node, NodeMetric
from koord.api.priority import DEFAULT_VALUES, PriorityClass
from koord.api.quantity import multiply_base
from koord.decisions.record import Term
from roles.manager.noderesource.inputs import CPU, MEMORY, Amount, NodePods, capacity, degraded, reserved, system_usage, usage
from roles.manager.noderesource.model import Contribution, Inputs

NAME = "MidResource"
NAMES = (names.RESOURCE_MID_CPU, names.RESOURCE_MID_MEMORY)


def calculate(inputs: Inputs) -> Contribution:
    """Mid resources of a node, or their removal while its metrics cannot be trusted. Raises QuantityError."""
    why = degraded(inputs)
    if why or inputs.metric is None:
        return Contribution(NAME, f"degraded: {why}", removed=frozenset(NAMES), degraded=True)
    strategy, totals = inputs.strategy, NodePods.of(inputs.pods).totals
    total = totals.of(capacity, inputs.node)
    caps = (strategy.mid_cpu_threshold_percent, strategy.mid_memory_threshold_percent)
    static = (strategy.mid_static_cpu_reserved_percent, strategy.mid_static_memory_reserved_percent)
    dynamic = totals.of(_dynamic, inputs.node, inputs.metric, totals.prod)
    amounts: list[int] = []
    for index, cap in enumerate(caps):
        most = multiply_base(total[index], cap / 100)
        if strategy.mid_static:
            amounts.append(min(multiply_base(total[index], static[index] / 100), most))
        else:
            reclaimable, unused, unallocated = dynamic[index]
            free = max(min(reclaimable, unused), 0) + multiply_base(unallocated, strategy.mid_unallocated_percent / 100)
            amounts.append(min(free, most))

    def reasons() -> tuple[Term, ...]:
        terms: list[Term] = []
        for index, (resource, amount) in enumerate(zip(("cpu", "memory"), amounts, strict=True)):
            (reclaimable, unused, unallocated), cap = dynamic[index], caps[index]
            note = f"min(capacity × {static[index]}%, capacity × {cap}%)"
            if not strategy.mid_static:
                note = f"min(max(min(reclaimable, unused), 0) + unallocated × {strategy.mid_unallocated_percent}%, capacity × {cap}%)"
                terms += [
                    Term(f"{resource}.reclaimable", reclaimable, "predicted reclaimable of Prod"),
                    Term(f"{resource}.unused", unused, "capacity − node usage"),
                    Term(f"{resource}.unallocated", unallocated, "capacity − max(system, reserved) − requests of Prod pods"),
                ]
            terms.append(Term(f"mid-{resource}", amount, note))
        return tuple(terms)

    mode = "static" if strategy.mid_static else "dynamic"
    message = f"mid-cpu {amounts[0]}m, mid-memory {amounts[1]} bytes ({mode})"
    return Contribution(NAME, message, resources=dict(zip(NAMES, amounts, strict=True)), reasons=reasons)


def _dynamic(node: Node, metric: NodeMetric, requests: Amount) -> list[tuple[int, int, int]]:
    """(reclaimable, unused, unallocated) of cpu and of memory; `requests` are those of Prod pods."""
    total = capacity(node)
    kubelet, annotation = reserved(node)
    system, hosts = system_usage(metric, DEFAULT_VALUES[PriorityClass.MID])
    predicted = metric.status.prod_reclaimable_metric
    reclaimable = usage(predicted.resource.resources) if predicted else (0, 0)
    used = metric.status.node_metric.node_usage.resources if metric.status.node_metric else {}
    measured = usage(used) if CPU in used and MEMORY in used else total
    return [
        (
            reclaimable[i],
            total[i] - measured[i],
            max(total[i] - max(system[i] + hosts[i], kubelet[i], annotation[i]) - requests[i], 0),
        )
        for i in (0, 1)
    ]
