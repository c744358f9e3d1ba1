"""What controllers share that keep one object for each Node, under the Node's name."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Generic, TypeVar

from koord.api.kinds import NODES, Kind
from koord.api.objects import Node, NodeMetric, NodeSLO
from koord.kube.errors import AlreadyExists, ApiError, NotFound
from koord.kube.informers import Informer
from roles.manager.controllers.base import EVERYTHING, Controller
from roles.manager.controllers.state import ClusterState
from roles.manager.controllers.writer import Writer

O = TypeVar("O", NodeMetric, NodeSLO)  # noqa: E741


class PerNodeController(Controller, Generic[O]):
    """Keys are node names. `count` is told of every write: whether it succeeded, and which it was."""

    kind: ClassVar[Kind]
    config_keys: ClassVar[frozenset[str]]
    """Keys of slo-controller-config that the objects follow."""

    def __init__(self, state: ClusterState, writer: Writer, objects: Informer[O], count: Callable[[bool, str], None]) -> None:
        super().__init__()
        self.state, self.writer, self._count = state, writer, count
        self.objects: Informer[O] = objects

    @abstractmethod
    def change(self, node: Node, found: O | None) -> dict[str, Any]:
        """The spec to create, or what to merge into the spec that is there; empty when nothing is to be done."""

    @abstractmethod
    def concerns(self, old: Node, new: Node) -> bool:
        """Whether the change of a Node may change its object."""

    def attach(self) -> None:
        """Listen, also to nodes that an edit of the configuration reaches now."""
        self.state.nodes.add_handler(
            on_add=lambda node: self.queue.add(node.metadata.name),
            on_update=lambda old, new: self.queue.add(new.metadata.name) if self.concerns(old, new) else None,
            on_delete=lambda node: self.queue.add(node.metadata.name),
        )
        self.objects.add_handler(
            on_add=lambda found: self.queue.add(found.metadata.name),
            on_update=lambda old, new: self.queue.add(new.metadata.name) if old.spec != new.spec else None,
            on_delete=lambda found: self.queue.add(found.metadata.name),
        )
        self.state.on_config(lambda changed: self.queue.add(EVERYTHING) if self.config_keys & changed else None)
        self.state.on_release(self.queue.add)

    def keys(self) -> Iterable[str]:
        """All nodes, and those that have an object still."""
        return dict.fromkeys(name for name, _ in (*self.state.nodes.items(), *self.objects.items()))

    async def reconcile(self, key: str) -> float | None:
        """Create, correct or delete the node's object."""
        node, found = self.state.nodes.get(key), self.objects.get(key)
        verb = "delete" if node is None else "create" if found is None else "update"
        try:
            done = await (self._write(key, self.change(node, found), found is None) if node else self._delete(key, found))
        except (ApiError, ValueError):
            self._count(False, f"{verb}{self.kind.kind}")
            raise
        if done:
            self._count(True, f"{verb}{self.kind.kind}")
        return None

    async def _write(self, name: str, spec: dict[str, Any], new: bool) -> bool:
        if not spec:
            return False
        if not new:
            await self.writer.patch(self.kind, name, {"spec": spec})
            return True
        body = {"apiVersion": self.kind.api_version, "kind": self.kind.kind, "metadata": {"name": name}, "spec": spec}
        try:
            await self.writer.create(self.kind, body)
        except AlreadyExists:
            return False  # the watch will show it
        return True

    async def _delete(self, name: str, found: O | None) -> bool:
        if found is None or not await self._is_gone(name):
            return False
        try:
            await self.writer.delete(self.kind, name)
        except NotFound:
            return False
        return True

    async def _is_gone(self, name: str) -> bool:
        """Whether the API server itself says that the Node is gone: a cache is no ground for deleting."""
        try:
            await self.writer.client.get(NODES, name)
        except NotFound:
            return True
        return False
