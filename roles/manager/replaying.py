"""The manager's decisions made again from its replay log: the formulas on what they looked at then. Pure (BEY-REPLAY-01)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from koord.api.objects import Device, Node, NodeMetric, NodeResourceTopology, convert
from koord.config.colocation import ColocationStrategy
from koord.config.slo import SLOConfig
from koord.decisions.deltas import applied
from koord.decisions.replayfile import FORMAT
from roles.manager.journal import Outcome, outcome_of
from roles.manager.noderesource.model import Inputs, PodInput
from roles.manager.noderesource.plan import Plan, decide
from roles.manager.noderesource.reports import PodUsages

Obj = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Turn:
    """A decision of the log with what it is made of. `then` is what the log says."""

    node: str
    inputs: Inputs
    cluster_enabled: bool
    last: float | None
    then: Outcome


@dataclass(slots=True)
class _Known:
    """What is known of a node; the structs are made once for as long as the data stays."""

    state: Obj = field(default_factory=dict)
    usages: PodUsages | None = None
    made: dict[str, tuple[Any, Any]] = field(default_factory=dict)

    def struct(self, key: str, kind: Any) -> Any:
        """The object that the state holds under a key; None without one."""
        plain = self.state.get(key)
        if plain is None:
            return None
        found = self.made.get(key)
        if found is None or found[0] is not plain:
            found = self.made[key] = plain, convert(plain, kind)
        return found[1]


class Decoder:
    """Lines to decisions. Raises ValueError, LookupError or TypeError for what is no line."""

    def __init__(self) -> None:
        self.version = ""
        self.plugins: tuple[str, ...] = ()
        self._nodes: dict[str, _Known] = {}

    def take(self, line: list[Any]) -> Turn | None:
        """The decision of a line; None for a head."""
        if line[0] == "head":
            head = line[1]
            if head["format"] != FORMAT or head["role"] != "manager":
                raise ValueError(f"format {head['format']} of role {head['role']} is not known here")
            self._nodes.clear()
            self.version, self.plugins = str(head["koord"]), tuple(head["plugins"])
            return None
        what, now, node, change, (resources, removed, checksum) = line
        if what != "d":
            raise ValueError(f"{what!r} is not known")
        known = self._nodes.setdefault(node, _Known())
        usages = change.pop("use", None)
        known.state = applied(known.state, change)
        known.usages = _usages(known.usages, usages) if usages else None
        state = known.state
        return Turn(node, _inputs(known, now), state["cluster"], state.get("last"), (resources, removed, checksum))

    def decide(self, turn: Turn, config: SLOConfig | None = None) -> Plan:
        """The decision made again; with another slo-controller-config if one is given."""
        inputs, enabled = turn.inputs, turn.cluster_enabled
        if config is not None:
            inputs, enabled = under(inputs, config), config.cluster_enabled
        return decide(inputs, cluster_enabled=enabled, plugins=self.plugins, last_write=turn.last)


def under(inputs: Inputs, config: SLOConfig) -> Inputs:
    """The same inputs under another configuration."""
    node = inputs.node
    return replace(
        inputs,
        strategy=config.colocation_for(node),
        normalization=config.cpu_normalization_for(node),
        amplification=config.resource_amplification_for(node),
    )


def rules(turn: Turn, config: SLOConfig, decoder: Decoder) -> Iterator[tuple[str, Any, Any, Plan]]:
    """Each rule that the configuration has another value for: name, value then and now, and the plan with that one alone."""
    then, now = turn.inputs, under(turn.inputs, config)

    def plan(inputs: Inputs, enabled: bool) -> Plan:
        return decide(inputs, cluster_enabled=enabled, plugins=decoder.plugins, last_write=turn.last)

    if turn.cluster_enabled != config.cluster_enabled:
        yield "enable", turn.cluster_enabled, config.cluster_enabled, plan(then, config.cluster_enabled)
    for name in ColocationStrategy.__dataclass_fields__:
        before, after = getattr(then.strategy, name), getattr(now.strategy, name)
        if name != "ignored" and before != after:
            one: Any = {name: after}
            yield name, before, after, plan(replace(then, strategy=replace(then.strategy, **one)), turn.cluster_enabled)
    for name in ("normalization", "amplification"):
        before, after = getattr(then, name), getattr(now, name)
        if before != after:
            one = {name: after}
            yield name, before, after, plan(replace(then, **one), turn.cluster_enabled)


def same(turn: Turn, plan: Plan) -> bool:
    """Whether the plan says what the log says, to the patches and the words."""
    return _listed(outcome_of(plan)) == _listed(turn.then)


def _listed(outcome: Outcome) -> tuple[Any, ...]:
    return dict(outcome[0]), list(outcome[1]), outcome[2]


def _usages(before: PodUsages | None, told: Mapping[str, Any]) -> PodUsages:
    if "keys" in told:
        sorts = [(kind[0], kind[1], kind[2]) for kind in told["kinds"]]
        return PodUsages.of_columns(told["keys"], sorts, told["cpu"], told["memory"])
    if before is None:
        raise ValueError("a report leans on one that is not there")
    keys, kinds = before.pods
    cpu, memory = (
        [old + more for old, more in zip(column, moved, strict=True)]
        for column, moved in ((before.cpu, told["c"]), (before.memory, told["m"]))
    )
    return PodUsages.of_columns(keys, kinds, cpu, memory)


def _inputs(known: _Known, now: float) -> Inputs:
    state = known.state
    metric: NodeMetric | None = known.struct("metric", NodeMetric)
    if metric is not None and known.usages is not None:
        columns: Any = known.usages
        metric = msgspec.structs.replace(metric, status=msgspec.structs.replace(metric.status, pods_metric=columns))
    fields: Any = {"batch_cpu_threshold_percent": None, "batch_memory_threshold_percent": None} | state["strategy"]
    fields["metric_aggregate_durations"] = tuple(fields["metric_aggregate_durations"])
    counts, shared, lower = state["gates"]
    return Inputs(
        node=known.struct("node", Node),
        strategy=ColocationStrategy(**fields),
        now=now,
        pods=tuple(known.struct("pods", dict[str, PodInput]).values()),
        metric=metric,
        topology=known.struct("topology", NodeResourceTopology),
        device=known.struct("device", Device),
        device_gone=state["gone"],
        normalization=state.get("normalization") or {},
        amplification=state.get("amplification") or {},
        count_pods_without_metric=counts,
        sync_gpu_shared=shared,
        lower_abnormal=lower,
        raw_is_kept=state.get("rawIsKept", True),  # earlier versions left the annotation alone
        smoothing=state["smoothing"],
    )
