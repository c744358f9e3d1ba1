"""The API server without its HTTP face: the store, the resources that are served, and the parts that writes go through."""

from __future__ import annotations

from typing import Any

import orjson

from koord.apiserver.admission.chain import AdmissionChain
from koord.apiserver.config import ServerConfig
from koord.apiserver.errors import not_found
from koord.apiserver.rbac import Authorizer, Tokens
from koord.apiserver.resources import Resource, ResourceTable, builtin_resources
from koord.apiserver.rest.context import prepare_create
from koord.apiserver.schema.builtin import schemas
from koord.apiserver.ssa.manager import FieldManagement
from koord.apiserver.store import Entry, Obj, Store
from koord.apiserver.wire import from_wire as event_from_wire
from koord.apiserver.wire import to_wire as event_to_wire

CRD_BUCKET = "apiextensions.k8s.io/customresourcedefinitions"


class Core:
    """Everything that a request handler needs."""

    def __init__(self, config: ServerConfig, store: Store | None = None) -> None:
        self.config = config
        self.store = store or Store()
        self.resources = ResourceTable()
        types = schemas()
        for resource in builtin_resources():
            resource.type = types.kind(resource.group, resource.version, resource.kind)
            if resource.group == "events.k8s.io":
                resource.to_wire, resource.from_wire, resource.rank, resource.stored_as = event_to_wire, event_from_wire, 1, "v1"
            self.resources.add(resource)
        self.tokens = Tokens(config.token)
        self.authorizer = Authorizer(self) if config.authorization_mode == "RBAC" else None
        # small derived values, each with the version that it was derived from
        self.cache: dict[str, Any] = {}
        self.admission = AdmissionChain(self, disabled=config.disabled_plugins, enabled=config.enabled_plugins)
        self.managed = FieldManagement(self)

    def entry(self, resource: Resource, namespace: str, name: str) -> Entry:
        """What is stored. Raises StatusError 404."""
        found = self.store.bucket(resource.bucket).get(namespace, name)
        if found is None:
            raise not_found(resource.plural, resource.group, name)
        return found

    def settle(self, resource: Resource, old: Entry, obj: Obj) -> Entry:
        """Store an update; one that takes the last finalizer off what waits to go removes it, and watchers see the deletion only."""
        bucket, meta = self.store.bucket(resource.bucket), obj["metadata"]
        waits = meta.get("finalizers") or meta.get("deletionGracePeriodSeconds")
        if resource.kind == "Namespace" and not resource.group:
            waits = waits or (obj.get("spec") or {}).get("finalizers")
        if not meta.get("deletionTimestamp") or waits:
            return bucket.put(old.namespace, old.name, obj)
        removed = bucket.remove(old.namespace, old.name)
        assert removed is not None
        obj["metadata"]["resourceVersion"] = str(removed.rv)
        return Entry(old.key, old.namespace, old.name, obj, removed.rv, orjson.dumps(obj))


_NAMESPACES = ("kube-system", "kube-public", "kube-node-lease", "default")
_PRIORITIES = (
    ("system-node-critical", 2_000_001_000, "Used for system critical pods that must not be moved from their current node."),
    ("system-cluster-critical", 2_000_000_000, "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary."),  # noqa: E501
)  # fmt: skip
# For those that have tokens and access reviewed, as koord's roles.
_DELEGATOR = [
    {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
    {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
]


def _put(core: Core, group: str, plural: str, namespace: str, obj: Obj) -> None:
    resource = core.resources.builtin(group, plural)
    bucket = core.store.bucket(resource.bucket)
    name = obj["metadata"]["name"]
    if bucket.get(namespace, name) is None:
        if namespace:
            obj["metadata"]["namespace"] = namespace
        prepare_create(resource, obj["metadata"])
        bucket.put(namespace, name, {"kind": resource.kind, "apiVersion": resource.api_version, **obj})


def seed(core: Core) -> None:
    """Create what is missing."""
    for name in _NAMESPACES:
        labels = {"kubernetes.io/metadata.name": name}
        obj: Obj = {"metadata": {"name": name, "labels": labels}, "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}
        _put(core, "", "namespaces", "", obj)
    for name, value, text in _PRIORITIES:
        obj = {"metadata": {"name": name}, "value": value, "description": text, "preemptionPolicy": "PreemptLowerPriority"}
        _put(core, "scheduling.k8s.io", "priorityclasses", "", obj)
    _put(core, "rbac.authorization.k8s.io", "clusterroles", "", {"metadata": {"name": "system:auth-delegator"}, "rules": _DELEGATOR})
    labels = {"component": "apiserver", "provider": "kubernetes"}
    ports = [{"name": "https", "protocol": "TCP", "port": 443, "targetPort": 6443}]
    spec: Obj = {
        "ports": ports, "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "type": "ClusterIP", "sessionAffinity": "None",
        "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "internalTrafficPolicy": "Cluster",
    }  # fmt: skip
    service = {"metadata": {"name": "kubernetes", "labels": labels}, "spec": spec, "status": {"loadBalancer": {}}}
    _put(core, "", "services", "default", service)
