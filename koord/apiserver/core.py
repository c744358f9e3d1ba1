"""The API server without its HTTP face: the store, the resources that are served, and the parts that writes go through."""

from __future__ import annotations

from pathlib import Path
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


def seed(core: Core) -> None:
    """Create what is missing of the objects that every cluster has; the role is for those that have tokens and access reviewed."""
    for obj in orjson.loads(Path(__file__).with_name("seed.json").read_bytes()):
        resource = core.resources.by_api_version(obj["apiVersion"], obj["kind"])
        assert resource is not None
        bucket, meta = core.store.bucket(resource.bucket), obj["metadata"]
        if bucket.get(meta.get("namespace", ""), meta["name"]) is None:
            prepare_create(resource, meta)
            bucket.put(meta.get("namespace", ""), meta["name"], obj)
