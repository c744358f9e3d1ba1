"""ElasticQuotaProfile controller: a quota tree for the nodes that a selector finds (MGR-QP-01)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from koord.accounting.resources import ResourceVector, format, parse
from koord.api import names
from koord.api.annotations import AnnotationError, parse_resource_keys
from koord.api.kinds import ELASTICQUOTAPROFILES, ELASTICQUOTAS
from koord.api.objects import ElasticQuota, ElasticQuotaProfile, Node, convert
from koord.api.objects_meta import find_condition
from koord.api.quantity import QuantityError, multiply_base
from koord.api.selectors import Selector, SelectorError, from_label_selector
from koord.kube.errors import AlreadyExists, ApiError, NotFound
from koord.kube.events import EventRecorder
from koord.kube.informers import Informer, InformerFactory
from koord.kube.patch import diff_merge_patch
from koord.kube.references import reference
from roles.manager.controllers.base import Controller, log
from roles.manager.controllers.state import ClusterState
from roles.manager.controllers.writer import Writer

PERIOD = 600.0  # seconds after which a quota is looked at again, whatever happened: others may write to it
SETTLE = 2.0  # seconds in which changes of nodes are gathered
RETRY = 2.0
UNLIMITED = "4611686018427387"


def fnv1a_64(text: str) -> int:
    """The 64-bit FNV-1a hash, from which a tree id is made."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


def ratio_of(text: str | None) -> float:
    """The profile's resourceRatio; unreadable or outside (0, 1] counts as 1."""
    try:
        ratio = float(text or 1)
    except ValueError:
        return 1.0
    return ratio if math.isfinite(ratio) and 0 < ratio <= 1 else 1.0


class Totals:
    """Allocatable of a set of nodes, and of those of them that are cordoned or not Ready, kept with every change of a node; pure."""

    def __init__(self, selector: Selector) -> None:
        self.selector = selector
        self._nodes: dict[str, tuple[ResourceVector, bool]] = {}
        self._all: dict[str, tuple[int, int]] = {}  # the sum, and how many nodes have the resource
        self._unschedulable: dict[str, tuple[int, int]] = {}

    def put(self, node: Node) -> bool:
        """A node as it is now. Whether that makes a difference. Raises QuantityError, and leaves the node out."""
        name = node.metadata.name
        if not self.selector.matches(node.metadata.labels):
            return self.drop(name)
        try:
            now = (parse(node.status.allocatable), _usable(node))
        except QuantityError:
            self.drop(name)
            raise
        if self._nodes.get(name) == now:
            return False
        self.drop(name)
        self._nodes[name] = now
        self._count(now, 1)
        return True

    def drop(self, name: str) -> bool:
        """A node that is gone. Whether it was one of them."""
        before = self._nodes.pop(name, None)
        if before is not None:
            self._count(before, -1)
        return before is not None

    def _count(self, node: tuple[ResourceVector, bool], sign: int) -> None:
        amounts, usable = node
        for total in (self._all,) if usable else (self._all, self._unschedulable):
            for resource, amount in amounts.items():
                sum_, nodes = total.get(resource, (0, 0))
                total[resource] = (sum_ + sign * amount, nodes + sign)

    def scaled(self, ratio: float) -> tuple[ResourceVector, ResourceVector]:
        """Both sums × ratio, truncated."""
        return _scaled(self._all, ratio), _scaled(self._unschedulable, ratio)


def _scaled(total: Mapping[str, tuple[int, int]], ratio: float) -> ResourceVector:
    return {name: amount if ratio == 1.0 else multiply_base(amount, ratio) for name, (amount, nodes) in total.items() if nodes}


def _usable(node: Node) -> bool:
    ready = find_condition(node.status.conditions, "Ready")
    return not node.spec.unschedulable and ready is not None and ready.status == "True"


def resource_keys(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """The resources that the quota is about."""
    try:
        keys = parse_resource_keys(annotations)
    except AnnotationError:
        keys = None
    return keys or (names.RESOURCE_CPU, names.RESOURCE_MEMORY)


def build(profile: ElasticQuotaProfile, tree_id: str, totals: Totals) -> dict[str, Any]:
    """The quota of a profile, as far as the controller decides it; pure."""
    total, unschedulable = totals.scaled(ratio_of(profile.spec.resource_ratio))
    keys = resource_keys(profile.metadata.annotations)
    amounts = format(total)
    return {
        "metadata": {
            "labels": {
                **profile.spec.quota_labels,
                names.LABEL_QUOTA_PROFILE: profile.metadata.name,
                names.LABEL_QUOTA_TREE_ID: tree_id,
                names.LABEL_QUOTA_IS_ROOT: "true",
            },
            "annotations": {
                names.ANNOTATION_QUOTA_TOTAL_RESOURCE: _json(amounts),
                names.ANNOTATION_QUOTA_UNSCHEDULABLE_RESOURCE: _json(format(unschedulable)),
            },
        },
        "spec": {"min": {key: amounts.get(key, "0") for key in keys}, "max": dict.fromkeys(keys, UNLIMITED)},
    }


def _json(value: Mapping[str, str]) -> str:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


class QuotaProfileController(Controller):
    """Keys are namespace/name of profiles. A change of a node that a profile selects is counted in, and written soon."""

    name = "quotaprofile"

    def __init__(self, state: ClusterState, informers: InformerFactory, writer: Writer, events: EventRecorder) -> None:
        super().__init__()
        self.state, self.writer, self.events = state, writer, events
        self.profiles: Informer[ElasticQuotaProfile] = informers.informer(ELASTICQUOTAPROFILES, ElasticQuotaProfile, optional=True)
        self.quotas: Informer[ElasticQuota] = informers.informer(ELASTICQUOTAS, ElasticQuota, optional=True)
        self._totals: dict[str, Totals] = {}
        self._own: dict[str, ElasticQuota] = {}  # what we wrote, until the watch shows it

    def attach(self) -> None:
        """Listen."""
        self.profiles.add_handler(
            on_add=lambda profile: self.queue.add(profile.key),
            on_update=lambda old, new: self.queue.add(new.key) if _asked(old) != _asked(new) else None,
            on_delete=lambda profile: self._totals.pop(profile.key, None),
        )
        self.state.nodes.add_handler(self._on_node, lambda old, new: self._on_node(new), self._on_node_gone)
        self.quotas.add_handler(self._on_quota, lambda old, new: self._on_quota(new), self._on_quota)

    def _on_node(self, node: Node) -> None:
        for key, totals in self._totals.items():
            try:
                changed = totals.put(node)
            except QuantityError as error:
                log.warning("ElasticQuotaProfile %s: node %s: %s; it is left out", key, node.metadata.name, error)
                changed = True
            if changed:
                self.queue.add_after(key, SETTLE)

    def _on_node_gone(self, node: Node) -> None:
        for key, totals in self._totals.items():
            if totals.drop(node.metadata.name):
                self.queue.add_after(key, SETTLE)

    def _on_quota(self, quota: ElasticQuota) -> None:
        """Ours is shown, or somebody has changed or deleted it."""
        self._own.pop(quota.key, None)
        profile = f"{quota.metadata.namespace}/{quota.metadata.labels.get(names.LABEL_QUOTA_PROFILE, '')}"
        if profile in self._totals:
            self.queue.add_after(profile, SETTLE)

    def keys(self) -> Iterable[str]:
        """All profiles."""
        return (key for key, _ in self.profiles.items())

    async def reconcile(self, key: str) -> float | None:
        """Create or correct the quota of one profile."""
        profile = self.profiles.get(key)
        if profile is None:
            return None
        try:
            totals = await self._totals_of(profile)
            tree_id = profile.metadata.labels.get(names.LABEL_QUOTA_TREE_ID) or await self._give_tree_id(profile)
            await self._write(profile, build(profile, tree_id, totals))
        except (SelectorError, QuantityError) as error:
            log.warning("ElasticQuotaProfile %s: %s", key, error)
        except ApiError as error:
            log.warning("ElasticQuotaProfile %s: %s; again in %.0fs", key, error, RETRY)
            reason = "CreateQuotaFailed" if self._present(profile) is None else "UpdateQuotaFailed"
            self.events.event(reference(profile, ELASTICQUOTAPROFILES), "Warning", reason, str(error))
            return RETRY
        return PERIOD

    async def _totals_of(self, profile: ElasticQuotaProfile) -> Totals:
        """The sums of a profile's nodes; counted from all nodes when its selector is new. Raises SelectorError."""
        selector = from_label_selector(profile.spec.node_selector)
        known = self._totals.get(profile.key)
        if known is not None and known.selector == selector:
            return known
        made = self._totals[profile.key] = Totals(selector)  # known to the handlers from here on
        for name in [name for name, _ in self.state.nodes.items()]:
            node = self.state.nodes.get(name)
            try:
                if node is not None:
                    made.put(node)
            except QuantityError as error:
                log.warning("ElasticQuotaProfile %s: node %s: %s; it is left out", profile.key, name, error)
            await self.turns.pause()
        return made

    def _present(self, profile: ElasticQuotaProfile) -> ElasticQuota | None:
        """The quota as we know it: our own write, or what the watch shows."""
        key = f"{profile.metadata.namespace}/{profile.spec.quota_name}"
        return self._own.get(key) or self.quotas.get(key)

    async def _give_tree_id(self, profile: ElasticQuotaProfile) -> str:
        tree_id = str(fnv1a_64(profile.key))
        body = {"metadata": {"labels": {names.LABEL_QUOTA_TREE_ID: tree_id}}}
        await self.writer.patch(ELASTICQUOTAPROFILES, profile.metadata.name, body, profile.metadata.namespace)
        return tree_id

    async def _write(self, profile: ElasticQuotaProfile, wanted: dict[str, Any]) -> None:
        name, namespace = profile.spec.quota_name, profile.metadata.namespace
        quota = self._present(profile)
        if quota is None:
            body = {"apiVersion": ELASTICQUOTAS.api_version, "kind": ELASTICQUOTAS.kind, **wanted}
            body["metadata"] = {**wanted["metadata"], "name": name, "namespace": namespace}
            try:
                self._wrote(await self.writer.create(ELASTICQUOTAS, body, namespace))
                return
            except AlreadyExists:  # the watch lags behind our own write, or somebody else was first
                quota = convert(await self.writer.client.get(ELASTICQUOTAS, name, namespace), ElasticQuota)
        patch = diff_merge_patch(_standing(quota, wanted), wanted)
        if not patch:
            return
        try:
            self._wrote(await self.writer.patch(ELASTICQUOTAS, name, patch, namespace))
        except NotFound:
            self._own.pop(quota.key, None)
            raise

    def _wrote(self, answer: dict[str, Any]) -> None:
        quota = convert(answer, ElasticQuota)
        seen = self.quotas.get(quota.key)
        if seen is None or seen.metadata.resource_version != quota.metadata.resource_version:
            self._own[quota.key] = quota


def _standing(quota: ElasticQuota, wanted: dict[str, Any]) -> dict[str, Any]:
    """What stands of all that the controller decides."""
    metadata = wanted["metadata"]
    return {
        "metadata": {
            "labels": {key: value for key, value in quota.metadata.labels.items() if key in metadata["labels"]},
            "annotations": {key: value for key, value in quota.metadata.annotations.items() if key in metadata["annotations"]},
        },
        "spec": {"min": format(parse(quota.spec.min)), "max": {key: str(value) for key, value in quota.spec.max.items()}},
    }


def _asked(profile: ElasticQuotaProfile) -> tuple[Any, ...]:
    """What of a profile its quota follows; the resources that the quota is about are an annotation."""
    return profile.spec, profile.metadata.labels, profile.metadata.annotations
