"""Writing to the API server: only while this replica leads, conflicts and throttling retried."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from koord import seams
from koord.api.kinds import Kind
from koord.kube.client import Client
from koord.kube.errors import Conflict, TooManyRequests

T = TypeVar("T")

ATTEMPTS, FIRST_PAUSE, GROWTH, JITTER = 4, 0.010, 5.0, 0.1


class NotLeading(Exception):
    """This replica does not lead (any more): nothing is written."""


class Writer:
    """The only way in which controllers write. `may_write` is asked before each attempt."""

    def __init__(self, client: Client, may_write: Callable[[], bool] = lambda: True) -> None:
        self.client = client
        self.may_write = may_write

    async def attempt(self, write: Callable[[], Awaitable[T]]) -> T:
        """Run `write` up to four times. Raises NotLeading, or the last error; AlreadyExists is not retried."""
        pause = FIRST_PAUSE
        for number in range(ATTEMPTS):
            if not self.may_write():
                raise NotLeading
            try:
                return await write()
            except (Conflict, TooManyRequests) as error:
                if number == ATTEMPTS - 1 or (isinstance(error, Conflict) and error.reason == "AlreadyExists"):
                    raise
            await seams.sleep(pause * (1 + seams.rng().random() * JITTER))
            pause *= GROWTH
        raise AssertionError("unreachable")

    async def create(self, kind: Kind, obj: dict[str, Any], namespace: str | None = None) -> dict[str, Any]:
        """Create an object."""
        return await self.attempt(lambda: self.client.create(kind, obj, namespace))

    async def patch(
        self, kind: Kind, name: str, body: dict[str, Any], namespace: str | None = None, *, subresource: str | None = None
    ) -> dict[str, Any]:
        """Merge-patch an object: only the named members change, whatever others write meanwhile."""
        return await self.attempt(lambda: self.client.patch(kind, name, body, namespace, type="merge", subresource=subresource))

    async def resize(self, kind: Kind, name: str, body: dict[str, Any], namespace: str) -> dict[str, Any]:
        """Change the resources of a pod's containers by their names, through its `resize` sub-resource."""
        return await self.attempt(lambda: self.client.patch(kind, name, body, namespace, type="strategic", subresource="resize"))

    async def delete(self, kind: Kind, name: str, namespace: str | None = None) -> None:
        """Delete an object."""

        async def delete() -> None:
            await self.client.delete(kind, name, namespace)

        await self.attempt(delete)
