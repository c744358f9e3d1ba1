"""ElasticQuotaProfile controller: a quota tree for the nodes that a selector finds (MGR-QP-01, manager.md 11)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from koord.accounting.resources import ResourceVector, add_into, format, parse
from koord.api import names
from koord.api.kinds import ELASTICQUOTAPROFILES, ELASTICQUOTAS
from koord.api.objects import ElasticQuota, ElasticQuotaProfile, Node
from koord.api.objects_meta import find_condition
from koord.api.quantity import QuantityError, multiply_base
from koord.kube.errors import ApiError
from koord.kube.events import EventRecorder, ObjectRef
from koord.kube.informers import Informer, InformerFactory
from koord.kube.patch import diff_merge_patch
from koord.kube.selectors import SelectorError, from_label_selector
from roles.manager.controllers.base import Controller, log
from roles.manager.controllers.world import World
from roles.manager.controllers.writer import Writer

PERIOD, RETRY = 10.0, 2.0
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


def totals(nodes: Iterable[Node], ratio: float) -> tuple[ResourceVector, ResourceVector]:
    """Allocatable of all nodes, and of those that are cordoned or not Ready; each × ratio, truncated. Raises QuantityError."""
    total: ResourceVector = {}
    unschedulable: ResourceVector = {}
    for node in nodes:
        allocatable = parse(node.status.allocatable)
        add_into(total, allocatable)
        ready = find_condition(node.status.conditions, "Ready")
        if node.spec.unschedulable or ready is None or ready.status != "True":
            add_into(unschedulable, allocatable)
    if ratio == 1.0:
        return total, unschedulable
    return tuple({name: multiply_base(amount, ratio) for name, amount in one.items()} for one in (total, unschedulable))  # type: ignore[return-value]


def resource_keys(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """The resources that the quota is about."""
    try:
        keys = orjson.loads(annotations.get(names.ANNOTATION_QUOTA_RESOURCE_KEYS) or "null")
    except orjson.JSONDecodeError:
        keys = None
    good = isinstance(keys, list) and keys and all(isinstance(key, str) for key in keys)
    return tuple(keys) if good else (names.RESOURCE_CPU, names.RESOURCE_MEMORY)


def build(profile: ElasticQuotaProfile, tree_id: str, nodes: Iterable[Node]) -> dict[str, Any]:
    """The quota of a profile, as far as the controller decides it; pure. Raises QuantityError."""
    total, unschedulable = totals(nodes, ratio_of(profile.spec.resource_ratio))
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
    """Keys are namespace/name of profiles; each comes again every ten seconds."""

    name = "quotaprofile"

    def __init__(self, world: World, informers: InformerFactory, writer: Writer, events: EventRecorder) -> None:
        super().__init__()
        self.world, self.writer, self.events = world, writer, events
        self.profiles: Informer[ElasticQuotaProfile] = informers.informer(ELASTICQUOTAPROFILES, ElasticQuotaProfile, optional=True)
        self.quotas: Informer[ElasticQuota] = informers.informer(ELASTICQUOTAS, ElasticQuota, optional=True)

    def attach(self) -> None:
        """Listen."""
        self.profiles.add_handler(
            on_add=lambda profile: self.queue.add(profile.key),
            on_update=lambda old, new: (
                self.queue.add(new.key) if (old.spec, old.metadata.labels) != (new.spec, new.metadata.labels) else None
            ),
        )

    async def reconcile(self, key: str) -> float | None:
        """Create or correct the quota of one profile."""
        profile = self.profiles.get(key)
        if profile is None:
            return None
        try:
            selector = from_label_selector(profile.spec.node_selector)
            nodes = [node for node in self.world.nodes.list() if selector.matches(node.metadata.labels)]
            tree_id = profile.metadata.labels.get(names.LABEL_QUOTA_TREE_ID) or await self._give_tree_id(profile)
            await self._write(profile, build(profile, tree_id, nodes))
        except (SelectorError, QuantityError) as error:
            log.warning("ElasticQuotaProfile %s: %s", key, error)
        except ApiError as error:
            log.warning("ElasticQuotaProfile %s: %s; again in %.0fs", key, error, RETRY)
            known = self.quotas.get(f"{profile.metadata.namespace}/{profile.spec.quota_name}") is not None
            self.events.event(_reference(profile), "Warning", "UpdateQuotaFailed" if known else "CreateQuotaFailed", str(error))
            return RETRY
        return PERIOD

    async def _give_tree_id(self, profile: ElasticQuotaProfile) -> str:
        tree_id = str(fnv1a_64(profile.key))
        body = {"metadata": {"labels": {names.LABEL_QUOTA_TREE_ID: tree_id}}}
        await self.writer.patch(ELASTICQUOTAPROFILES, profile.metadata.name, body, profile.metadata.namespace)
        return tree_id

    async def _write(self, profile: ElasticQuotaProfile, wanted: dict[str, Any]) -> None:
        name, namespace = profile.spec.quota_name, profile.metadata.namespace
        quota = self.quotas.get(f"{namespace}/{name}")
        if quota is None:
            body = {"apiVersion": ELASTICQUOTAS.api_version, "kind": ELASTICQUOTAS.kind, **wanted}
            body["metadata"] = {**wanted["metadata"], "name": name, "namespace": namespace}
            await self.writer.create(ELASTICQUOTAS, body, namespace)
            return
        present = {
            "metadata": {
                "labels": {key: value for key, value in quota.metadata.labels.items() if key in wanted["metadata"]["labels"]},
                "annotations": {
                    key: value for key, value in quota.metadata.annotations.items() if key in wanted["metadata"]["annotations"]
                },
            },
            "spec": {"min": format(parse(quota.spec.min)), "max": {key: str(value) for key, value in quota.spec.max.items()}},
        }
        patch = diff_merge_patch(present, wanted)
        if patch:
            await self.writer.patch(ELASTICQUOTAS, name, patch, namespace)


def _reference(profile: ElasticQuotaProfile) -> ObjectRef:
    kind, meta = ELASTICQUOTAPROFILES, profile.metadata
    return ObjectRef(kind.kind, meta.name, meta.namespace, meta.uid, kind.api_version)
