"""The API server without its HTTP face: the store, the resources that are served, and the parts that writes go through."""

from __future__ import annotations

from typing import Any

import orjson

from koord.apiserver.admission.chain import AdmissionChain
from koord.apiserver.auth import Tokens
from koord.apiserver.config import ServerConfig
from koord.apiserver.events_v1 import from_wire as event_from_wire
from koord.apiserver.events_v1 import to_wire as event_to_wire
from koord.apiserver.rbac import Authorizer
from koord.apiserver.resources import Resource, ResourceTable, builtin_resources
from koord.apiserver.schema.builtin import schemas
from koord.apiserver.ssa.manager import FieldManagement
from koord.apiserver.store import Entry, Store

Obj = dict[str, Any]

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
                resource.to_wire, resource.from_wire, resource.rank = event_to_wire, event_from_wire, 1
            self.resources.add(resource)
        self.tokens = Tokens(config.token)
        self.authorizer = Authorizer(self) if config.authorization_mode == "RBAC" else None
        # small derived values, each with the version that it was derived from
        self.cache: dict[str, Any] = {}
        self.admission = AdmissionChain(self, disabled=config.disabled_plugins, enabled=config.enabled_plugins)
        self.managed = FieldManagement(self)

    def finish_deletion(self, resource: Resource, old: Entry, obj: Obj) -> Entry:
        """Remove an object whose last finalizer went. That last update itself is not stored: watchers see the deletion only."""
        removed = self.store.bucket(resource.bucket).remove(old.namespace, old.name)
        assert removed is not None
        obj["metadata"]["resourceVersion"] = str(removed.rv)
        return Entry(old.key, old.namespace, old.name, obj, removed.rv, orjson.dumps(obj))
