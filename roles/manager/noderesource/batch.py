"""BatchResource: what Batch pods may use of a node (MGR-NR-BATCH-01); pure.

`usage`: Total − Margin − Sys − HPUsed; `request` (memory): Total − Margin − Reserved − HPRequest; `maxUsageRequest`:
Total − Margin − Sys − HPMax; each floored at 0 and capped by batch…ThresholdPercent.
"""

from __future__ import annotations

from koord.api import names
from koord.api.objects import Node, NodeMetric
from koord.api.priority import DEFAULT_VALUES, PriorityClass
from koord.decisions.record import Term
from roles.manager.noderesource import formula, zones
from roles.manager.noderesource.inputs import Amount, NodePods, capacity, degraded, reserved, system_usage
from roles.manager.noderesource.model import Contribution, Inputs

NAME = "BatchResource"
NAMES = (names.RESOURCE_BATCH_CPU, names.RESOURCE_BATCH_MEMORY)


def calculate(inputs: Inputs) -> Contribution:
    """Batch resources of a node, or their removal while its metrics cannot be trusted. Raises QuantityError."""
    why = degraded(inputs)
    if why or inputs.metric is None:
        return Contribution(NAME, f"degraded: {why}", removed=frozenset(NAMES), clear_zones=True, degraded=True)
    summed = NodePods.of(inputs.pods)
    total, kubelet, annotation, system, hosts = summed.totals.of(_amounts, inputs.node, inputs.metric)
    pods = summed.high(inputs.metric)
    # Upstream leaves pods without metric out of HPMax, which over-commits right after their start; see docs/manager.md.
    left_out = (0, 0) if inputs.count_pods_without_metric else pods.unmeasured
    strategy = inputs.strategy
    balances = [
        formula.Balance(
            policy=(strategy.cpu_policy, strategy.memory_policy)[index],
            total=total[index],
            reclaim_percent=(strategy.cpu_reclaim_percent, strategy.memory_reclaim_percent)[index],
            cap=(strategy.batch_cpu_threshold_percent, strategy.batch_memory_threshold_percent)[index],
            reserved=max(kubelet[index], annotation[index]),
            system=system[index] + hosts[index],
            used=pods.used[index],
            request=pods.request[index],
            max=pods.max[index] - left_out[index],
        )
        for index in (0, 1)
    ]
    amounts = [balance.amount for balance in balances]

    def reasons() -> tuple[Term, ...]:
        terms: list[Term] = []
        for index, (resource, unit, balance) in enumerate(zip(("cpu", "memory"), ("m", ""), balances, strict=True)):
            terms += [
                Term(f"{resource}.total", balance.total, "node capacity"),
                Term(f"{resource}.margin", balance.margin, f"total × {100 - balance.reclaim_percent}% kept free"),
                Term(
                    f"{resource}.reserved", balance.reserved, f"max(kubelet {kubelet[index]}{unit}, annotation {annotation[index]}{unit})"
                ),
                Term(
                    f"{resource}.system",
                    max(balance.system, balance.reserved),
                    f"max(system {system[index]}{unit} + host applications {hosts[index]}{unit}, reserved)",
                ),
                Term(f"{resource}.hpUsed", balance.used, f"high-priority pods' usage, {pods.dangling[index]}{unit} of it without a pod"),
                Term(f"{resource}.hpRequest", balance.request, "high-priority pods' requests"),
                Term(f"{resource}.hpMax", balance.max, "high-priority pods' larger of usage and request"),
                Term(f"batch-{resource}", amounts[index], balance.text),
            ]
        return tuple(terms)

    return Contribution(
        NAME,
        f"batch-cpu {amounts[0]}m by {strategy.cpu_policy}, batch-memory {amounts[1]} bytes by {strategy.memory_policy}",
        resources=dict(zip(NAMES, amounts, strict=True)),
        zones=zones.calculate(inputs),
        reasons=reasons,
    )


def _amounts(node: Node, metric: NodeMetric) -> tuple[Amount, Amount, Amount, Amount, Amount]:
    """Capacity, what kubelet and annotation reserve, and what system and host applications use."""
    return capacity(node), *reserved(node), *system_usage(metric, DEFAULT_VALUES[PriorityClass.BATCH])
