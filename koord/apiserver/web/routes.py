"""Paths: which resource, namespace, name and subresource a URL means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote

if TYPE_CHECKING:
    from koord.apiserver.resources import Resource, ResourceTable


@dataclass(slots=True)
class Target:
    """A resource path. `namespace` is None for all namespaces and for cluster-scoped resources."""

    resource: Resource
    namespace: str | None
    name: str = ""
    subresource: str = ""

    @property
    def place(self) -> str:
        """The namespace as the store spells it."""
        return self.namespace or ""


def split(path_qs: str) -> tuple[str, dict[str, str]]:
    """Path and query of a request target. Of a repeated parameter the first counts."""
    path, _, query = path_qs.partition("?")
    if not query:
        return path, {}
    out: dict[str, str] = {}
    for key, value in parse_qsl(query, keep_blank_values=True):
        out.setdefault(key, value)
    return path, out


def resolve(table: ResourceTable, segments: list[str]) -> Target | None:
    """The target of the path segments after /api or /apis, core group as ["v1", …]; None when nothing is served there."""
    if segments[0] == "api":
        group, version, rest = "", segments[1], segments[2:]
    else:
        group, version, rest = segments[1], segments[2], segments[3:]
    if "%" in "".join(rest):
        rest = [unquote(r) for r in rest]
    count = len(rest)
    if count >= 3 and rest[0] == "namespaces":
        resource = table.by_path(group, version, rest[2])
        if resource is not None and resource.namespaced:
            if count > 5:
                return None
            return Target(resource, rest[1], rest[3] if count > 3 else "", rest[4] if count > 4 else "")
    resource = table.by_path(group, version, rest[0])
    if resource is None or count > 3:
        return None
    if count == 1:
        return Target(resource, None)
    if resource.namespaced:
        return None
    return Target(resource, None, rest[1], rest[2] if count > 2 else "")
