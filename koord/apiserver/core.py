"""The API server without its HTTP face: its state, and the parts that writes go through."""

from __future__ import annotations

from pathlib import Path

import orjson

from koord.apiserver.admission.chain import AdmissionChain
from koord.apiserver.config import ServerConfig
from koord.apiserver.rest.context import prepare_create
from koord.apiserver.ssa.manager import FieldManagement
from koord.apiserver.state import State
from koord.apiserver.store import Store


class Core(State):
    """Everything that a request handler needs."""

    def __init__(self, config: ServerConfig, store: Store | None = None, key: bytes = b"") -> None:
        super().__init__(config, store, key)
        self.admission = AdmissionChain(self, disabled=config.disabled_plugins, enabled=config.enabled_plugins)
        self.managed = FieldManagement(config.managed_fields)


def seed(core: Core) -> None:
    """Create what is missing of the objects that every cluster has; the role is for those that have tokens and access reviewed."""
    for obj in orjson.loads(Path(__file__).with_name("seed.json").read_bytes()):
        resource = core.resources.by_api_version(obj["apiVersion"], obj["kind"])
        assert resource is not None
        bucket, meta = core.store.bucket(resource.bucket), obj["metadata"]
        if bucket.get(meta.get("namespace", ""), meta["name"]) is None:
            prepare_create(resource, meta)
            bucket.put(meta.get("namespace", ""), meta["name"], obj)
