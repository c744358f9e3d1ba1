"""The store, the resources that are served, and who may do what: what admission and authorization read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import orjson

from koord.apiserver.config import ServerConfig
from koord.apiserver.errors import not_found
from koord.apiserver.rbac import Authorizer
from koord.apiserver.resources import Resource, ResourceTable, builtin_resources
from koord.apiserver.schema.builtin import schemas
from koord.apiserver.store import Entry, Obj, Store
from koord.apiserver.tokens import Tokens

T = TypeVar("T")


class State:
    """What is there, and how it is served. `config` says what of it is on; `key` signs the tokens of service accounts."""

    def __init__(self, config: ServerConfig, store: Store | None = None, key: bytes = b"") -> None:
        self.config = config
        self.store = store or Store()
        self.resources = ResourceTable()
        types = schemas()
        for resource in builtin_resources():
            resource.type = types.kind(resource.group, resource.version, resource.kind)
            self.resources.add(resource)
        self.tokens = Tokens(self.store, config.token, key)
        self.authorizer = Authorizer(self.store) if config.authorization_mode == "RBAC" else None
        self._derived: dict[str, tuple[int, Any]] = {}

    def derived(self, name: str, version: int, make: Callable[[], T]) -> T:
        """What is made of something at a version of it, kept until that is another."""
        known = self._derived.get(name)
        if known is None or known[0] != version:
            known = self._derived[name] = (version, make())
        made: T = known[1]
        return made

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
