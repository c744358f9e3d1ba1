"""From one node's inputs to the patches that it needs, with the record of every term (MGR-NR-01); pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from koord.accounting.resources import parse
from koord.api import names
from koord.api.annotations import AnnotationError, node_penalty, parse_third_party_allocations
from koord.api.objects import Node
from koord.api.priority import PriorityClass
from koord.api.quantity import QuantityError, format_binary, format_decimal, milli_or, parse_milli, parse_value
from koord.decisions.record import Term
from roles.manager.noderesource import amplification, batch, devices, mid, normalization
from roles.manager.noderesource.model import Contribution, Inputs, PluginError
from roles.manager.noderesource.trust import lowered, share_of, smoothed
from roles.manager.noderesource.zones import UNREADABLE, differs, scale

# In the order that they run: name, calculator, resources that a status write is about.
PLUGINS: tuple[tuple[str, Callable[[Inputs], Contribution], tuple[str, ...]], ...] = (
    (normalization.NAME, normalization.calculate, ()),
    (amplification.NAME, amplification.calculate, ()),
    (mid.NAME, mid.calculate, mid.NAMES),
    (batch.NAME, batch.calculate, batch.NAMES),
    (devices.GPU, devices.gpu, devices.GPU_NAMES),
    (devices.RDMA, devices.rdma, (names.RESOURCE_RDMA,)),
)
PLUGIN_NAMES = tuple(name for name, _, _ in PLUGINS)

_RATIO = names.ANNOTATION_NODE_CPU_NORMALIZATION_RATIO
_ORIGIN = names.ANNOTATION_NODE_ORIGIN_EXTENDED_ALLOCATABLE
_BINARY = frozenset({names.RESOURCE_BATCH_MEMORY, names.RESOURCE_MID_MEMORY, names.RESOURCE_GPU_MEMORY})


@dataclass(slots=True)
class Plan:
    """What to write about a node. A patch of None means that nothing is to be written; `status_due` that a write was due anyway."""

    enabled: bool
    contributions: list[Contribution] = field(default_factory=list)
    errors: list[tuple[str, str]] = field(default_factory=list)
    resources: dict[str, int] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    status_due: bool = False
    status_patch: dict[str, Any] | None = None
    metadata_patch: dict[str, Any] | None = None
    ratio: float | None = None

    @property
    def unmeasured(self) -> bool:
        """Whether Batch is taken away because nothing is known of the node."""
        return any(item.plugin == batch.NAME and item.degraded for item in self.contributions)

    def hold(self) -> None:
        """Leave Batch and Mid as they stand, on the node and in its zones."""
        kept = frozenset((*batch.NAMES, *mid.NAMES))
        status = {
            section: rest
            for section, changes in ((self.status_patch or {}).get("status") or {}).items()
            if (rest := {name: text for name, text in changes.items() if name not in kept})
        }
        self.status_patch = {"status": status} if status else None
        if self.metadata_patch is not None:
            self.metadata_patch["metadata"].get("annotations", {}).pop(_ORIGIN, None)
            if not any(self.metadata_patch["metadata"].values()):
                self.metadata_patch = None
        self.contributions = [item for item in self.contributions if item.plugin not in (batch.NAME, mid.NAME)]

    @property
    def body(self) -> dict[str, Any]:
        """Both patches as one; empty when nothing is to be written."""
        return {**(self.status_patch or {}), **(self.metadata_patch or {})}

    @property
    def answers(self) -> list[tuple[Any, ...]]:
        """What the plugins want of the node, without what stands on it and without the words."""
        return [(c.plugin, c.resources, c.removed, c.annotations, c.labels, c.zones, c.clear_zones) for c in self.contributions]

    @property
    def terms(self) -> list[Term]:
        """Every term of every plugin."""
        return [term for contribution in self.contributions for term in contribution.terms]


def decide(inputs: Inputs, *, cluster_enabled: bool, plugins: Collection[str], last_write: float | None) -> Plan:
    """The plan of a node. `last_write` is when this process last wrote the node's status (Unix time), None for never."""
    enabled = cluster_enabled and inputs.strategy.enable
    plan = Plan(enabled)
    if enabled:
        _calculate(inputs, plugins, plan)
    else:
        why = "the cluster's enable is off" if not cluster_enabled else "the node's enable is off"
        _reset(inputs, plugins, plan, why)
        _calculate(inputs, [name for name in plugins if name in _apart(inputs)], plan)
    since = None if last_write is None else inputs.now - last_write
    annotations, labels = _collect(inputs, plan, since)
    _status(inputs, plan, last_write)
    _metadata(inputs.node, plan, annotations, labels)
    return plan


def _calculate(inputs: Inputs, plugins: Collection[str], plan: Plan) -> None:
    for name, calculate, _ in PLUGINS:
        if name not in plugins:
            continue
        try:
            contribution = calculate(inputs)
        except (PluginError, QuantityError) as error:
            plan.errors.append((name, str(error)))
            if name == normalization.NAME:
                plan.ratio = normalization.standing(inputs.node)
            continue
        plan.contributions.append(lowered(contribution, node_penalty(inputs.node.metadata.annotations) if inputs.lower_abnormal else 0))
        if contribution.ratio is not None:
            plan.ratio = contribution.ratio


def _reports_devices(inputs: Inputs) -> bool:
    """Whether the node's devices are known: they do not hang on co-location. What others offer without a Device is theirs."""
    return inputs.device is not None or inputs.device_gone


def _apart(inputs: Inputs) -> tuple[str, ...]:
    """Plugins that run where co-location is off."""
    reported = (devices.GPU, devices.RDMA) if _reports_devices(inputs) else ()
    return (normalization.NAME, *reported) if normalization.taken_back(inputs) else reported


def _reset(inputs: Inputs, plugins: Collection[str], plan: Plan, why: str) -> None:
    """Co-location is off: Mid, Batch and amplification go, the normalization annotation stays unless that was rolled back itself."""
    if mid.NAME in plugins:
        plan.contributions.append(Contribution(mid.NAME, why, removed=frozenset(mid.NAMES)))
    if batch.NAME in plugins:
        plan.contributions.append(Contribution(batch.NAME, why, removed=frozenset(batch.NAMES), clear_zones=True))
    if amplification.NAME in plugins:
        plan.contributions.append(amplification.removed(inputs, why))


def _collect(inputs: Inputs, plan: Plan, since: float | None) -> tuple[dict[str, str | None], dict[str, str]]:
    annotations: dict[str, str | None] = {}
    labels: dict[str, str] = {}
    for number, contribution in enumerate(plan.contributions):
        resources = contribution.resources
        if inputs.smoothing > 0:
            resources = smoothed(resources, inputs.node.status.allocatable, inputs.smoothing, since)
        if contribution.plugin == batch.NAME:
            try:
                resources, plan.contributions[number] = _prepare_batch(inputs, plan, contribution, annotations, since)
            except PluginError as error:
                plan.errors.append((batch.NAME, str(error)))
                continue
        plan.resources.update(resources)
        plan.removed.update(contribution.removed)
        annotations.update(contribution.annotations)
        labels.update(contribution.labels)
    return annotations, labels


def _prepare_batch(
    inputs: Inputs, plan: Plan, contribution: Contribution, annotations: dict[str, str | None], since: float | None
) -> tuple[dict[str, int], Contribution]:
    """Scale by the fresh normalization ratio, smooth, note the origin, take away what third parties hold (MGR-NR-BATCH-03).

    One amount everywhere: what the node offers, its origin annotation and its zones are smoothed alike.
    """
    node, resources = inputs.node, dict(contribution.resources)
    if resources:
        resources[names.RESOURCE_BATCH_CPU] = scale(resources[names.RESOURCE_BATCH_CPU], plan.ratio)
    held = third_party(node.metadata.annotations) if resources else {}
    if inputs.smoothing > 0 and resources:
        present = node.status.allocatable
        stands = {name: parse_value(present[name]) + held.get(name, 0) for name in resources if name in present}
        eased = smoothed(resources, stands, inputs.smoothing, since)
        contribution = replace(contribution, zones=share_of(contribution.zones, eased, resources))
        resources = eased
    if plan.enabled or _ORIGIN in node.metadata.annotations:
        amounts = {name: format_amount(name, resources.get(name, 0)) for name in batch.NAMES}
        annotations[_ORIGIN] = _merge_origin(node.metadata.annotations.get(_ORIGIN), amounts)
    return {name: max(amount - held.get(name, 0), 0) for name, amount in resources.items()}, contribution


def _merge_origin(text: str | None, amounts: Mapping[str, str]) -> str:
    try:
        present = orjson.loads(text) if text else {}
        others = dict(present.get("resources") or {}) if isinstance(present, dict) else {}
    except (orjson.JSONDecodeError, TypeError, ValueError):
        others = {}
    return orjson.dumps({"resources": {**others, **amounts}}, option=orjson.OPT_SORT_KEYS).decode()


def third_party(annotations: Mapping[str, str]) -> dict[str, int]:
    """Batch resources that others than koord-scheduler gave away, summed. Raises PluginError: ignoring them would promise twice."""
    key = names.ANNOTATION_NODE_THIRD_PARTY_ALLOCATIONS
    total: dict[str, int] = {}
    try:
        for entry in (parse_third_party_allocations(annotations) if annotations.get(key) else None) or ():
            if entry.priority == PriorityClass.BATCH:
                for name, amount in parse(entry.resources).items():
                    if amount < 0:
                        raise PluginError(f"annotation {key}: {name} of {entry.name!r} must not be negative")
                    total[name] = total.get(name, 0) + amount
    except AnnotationError as error:
        raise PluginError(f"annotation {key} is unreadable: {error.detail}") from None
    return total


def format_amount(name: str, amount: int) -> str:
    """Canonical text of an extended resource; always a whole number."""
    return format_binary(amount) if name in _BINARY else format_decimal(amount)


def _status(inputs: Inputs, plan: Plan, last_write: float | None) -> None:
    node = inputs.node
    if not node.status.capacity or not node.status.allocatable:
        return
    overdue = last_write is None or inputs.now - last_write > inputs.strategy.update_time_threshold_seconds
    plan.status_due = overdue or _differs(node.status.allocatable, plan, inputs.strategy.resource_diff_threshold)
    if not plan.status_due:
        return
    wanted: dict[str, int | None] = {**dict.fromkeys(plan.removed, None), **plan.resources}
    patch = {}
    for section, present in (("capacity", node.status.capacity), ("allocatable", node.status.allocatable)):
        changes = {
            name: None if amount is None else format_amount(name, amount)
            for name, amount in wanted.items()
            if (name in present if amount is None else name not in present or milli_or(present[name], UNREADABLE) != amount * 1000)
        }
        if changes:
            patch[section] = changes
    plan.status_patch = {"status": patch} if patch else None


def rank(node: Node, plan: Plan) -> tuple[int, float]:
    """How urgent the writes of a plan are, lowest first: what shrinks before what grows, and of each what moves most.

    Until a promise that does not hold any more is taken back, pods are placed on it; one that grows can wait.
    """
    shrinks = grows = 0.0
    for name, text in ((plan.status_patch or {}).get("status") or {}).get("allocatable", {}).items():
        try:
            before, after = parse_milli(node.status.allocatable.get(name, 0)), parse_milli(text or 0)
        except QuantityError:
            continue  # what stands there is no amount: any order will do
        moved = (after - before) / max(after, before, 1)
        shrinks, grows = max(shrinks, -moved), max(grows, moved)
    return (0, -shrinks) if shrinks else (1, -grows)


def unlike(plan: Plan) -> int:
    """How many annotations and labels of a node the plan would change, those that are amounts left out."""
    metadata = (plan.metadata_patch or {}).get("metadata") or {}
    return len(metadata.get("labels") or ()) + len((metadata.get("annotations") or {}).keys() - {_ORIGIN})


def moved(node: Node, plan: Plan) -> float:
    """How far Batch and Mid would move from what stands on a node, 1 for each that comes or goes."""
    far = 0.0
    for name in (*batch.NAMES, *mid.NAMES):
        try:
            before = parse_milli(node.status.allocatable.get(name, 0))
        except QuantityError:
            continue
        after = plan.resources.get(name, 0) * 1000
        far += abs(after - before) / max(after, before, 1)
    return far


def _differs(present: Mapping[str, str | int | float], plan: Plan, threshold: float) -> bool:
    """Whether something comes, goes, or has moved by more than the threshold."""
    if any(name not in plan.resources for name in plan.removed & present.keys()):
        return True
    for name, amount in plan.resources.items():
        if name not in present or differs(milli_or(present[name], UNREADABLE), amount * 1000, threshold):
            return True
    return False


def _metadata(node: Node, plan: Plan, annotations: Mapping[str, str | None], labels: Mapping[str, str]) -> None:
    present = node.metadata.annotations
    changed: dict[str, str | None] = {}
    for key, value in annotations.items():
        if key == _ORIGIN:
            due = plan.status_due and present.get(key) != value
        elif key == _RATIO:
            due = _ratio_differs(present.get(key), value)
        else:
            due = present.get(key) != value
        if due:
            changed[key] = value
    relabelled = {key: value for key, value in labels.items() if node.metadata.labels.get(key) != value}
    patch: dict[str, Any] = {}
    if changed:
        patch["annotations"] = changed
    if relabelled:
        patch["labels"] = relabelled
    plan.metadata_patch = {"metadata": patch} if patch else None


def _ratio_differs(old: str | None, new: str | None) -> bool:
    if old is None or new is None:
        return old != new
    before, after = normalization.parse_ratio(old), normalization.parse_ratio(new)
    return before is None or after is None or abs(before - after) > 0.01
