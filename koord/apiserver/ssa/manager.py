"""Managed fields of objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from koord.apiserver.errors import unsupported_media_type

if TYPE_CHECKING:
    from koord.apiserver.core import Core
    from koord.apiserver.resources import Resource
    from koord.apiserver.rest.context import Options
    from koord.apiserver.store import Entry

Obj = dict[str, Any]


class FieldManagement:
    """Keeps metadata.managedFields."""

    def __init__(self, core: Core) -> None:
        self.core = core

    def before_create(self, resource: Resource, obj: Obj, options: Options) -> None:
        obj["metadata"].pop("managedFields", None)

    def on_create(self, resource: Resource, obj: Obj, options: Options) -> None:
        return None

    def on_update(self, resource: Resource, obj: Obj, stored: Obj, options: Options, subresource: str) -> None:
        obj["metadata"].pop("managedFields", None)

    async def apply(
        self, resource: Resource, namespace: str, name: str, patch: Any, options: Options, subresource: str
    ) -> tuple[Entry, bool]:
        raise unsupported_media_type(("application/merge-patch+json",))
