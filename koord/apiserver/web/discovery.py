"""Discovery: which groups, versions and resources there are, in both the old and the aggregated form."""

from __future__ import annotations

import base64
import hashlib
import platform
from typing import TYPE_CHECKING

from koord.apiserver.resources import SUBRESOURCE_KINDS, SUBRESOURCE_VERBS, Resource, ResourceTable, api_version, version_order
from koord.apiserver.store import Obj
from koord.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


KUBERNETES_VERSION = "v1.36.0"
_ORDER = (
    "", "apps", "events.k8s.io", "authentication.k8s.io", "authorization.k8s.io", "autoscaling", "batch", "networking.k8s.io", "policy",
    "rbac.authorization.k8s.io", "storage.k8s.io", "admissionregistration.k8s.io", "apiextensions.k8s.io", "scheduling.k8s.io",
    "coordination.k8s.io", "node.k8s.io", "discovery.k8s.io",
)  # fmt: skip


def version() -> Obj:
    """GET /version. The Kubernetes version whose API this server speaks, marked as what it is."""
    return {
        "major": "1",
        "minor": "36",
        "gitVersion": f"{KUBERNETES_VERSION}+koord-{VERSION}",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": platform.python_implementation(),
        "platform": f"linux/{ {'x86_64': 'amd64', 'aarch64': 'arm64'}.get(platform.machine(), platform.machine()) }",
    }


def groups(table: ResourceTable) -> dict[str, list[str]]:
    """Group -> versions, preferred first; built-in groups in kube-apiserver's order, then the others by name."""
    found: dict[str, set[str]] = {}
    for resource in table:
        found.setdefault(resource.group, set()).add(resource.version)
    order = [g for g in _ORDER if g in found] + sorted(g for g in found if g not in _ORDER)
    return {g: sorted(found[g], key=version_order) for g in order}


def api_versions(host: str) -> Obj:
    """GET /api."""
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": host}]}


def _group(name: str, versions: list[str]) -> Obj:
    listed = [{"groupVersion": f"{name}/{v}", "version": v} for v in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def group_list(table: ResourceTable) -> Obj:
    """GET /apis."""
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(g, v) for g, v in groups(table).items() if g]}


def api_group(table: ResourceTable, name: str) -> Obj | None:
    """GET /apis/<group>."""
    versions = groups(table).get(name)
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(name, versions)} if versions and name else None


def _of(table: ResourceTable, group: str, version_: str) -> Iterable[Resource]:
    return sorted((r for r in table.of_group(group) if r.version == version_), key=lambda r: r.plural)


def resource_list(table: ResourceTable, group: str, version_: str) -> Obj | None:
    """GET /api/v1 or /apis/<group>/<version>."""
    out: list[Obj] = []
    for resource in _of(table, group, version_):
        entry: Obj = {"name": resource.plural, "singularName": resource.singular, "namespaced": resource.namespaced, "kind": resource.kind}
        out.append(entry | {"verbs": list(resource.verbs)} | _also_called(resource))
        if "list" in resource.verbs:
            out[-1]["storageVersionHash"] = storage_hash(resource)
        for sub, kind, verbs in _subresources(resource):
            own: Obj = {"name": f"{resource.plural}/{sub}", "singularName": "", "namespaced": resource.namespaced, "kind": kind["kind"]}
            if sub in SUBRESOURCE_KINDS:
                own |= {key: kind[key] for key in ("group", "version") if kind[key]}
            out.append(own | {"verbs": verbs})
    head = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version(group, version_)}
    return {**head, "resources": out} if out else None


def _also_called(resource: Resource) -> Obj:
    given = {"shortNames": resource.short_names, "categories": resource.categories}
    return {key: list(names) for key, names in given.items() if names}


def storage_hash(resource: Resource) -> str:
    """An opaque value that changes with the stored version of a resource."""
    digest = hashlib.sha256(f"{resource.group}/{resource.version}/{resource.kind}".encode()).digest()
    return base64.b64encode(digest[:8]).decode()


def _gvk(*parts: str) -> Obj:
    return dict(zip(("group", "version", "kind"), parts, strict=True))


def _subresources(resource: Resource) -> Iterator[tuple[str, Obj, list[str]]]:
    """(name, kind of the body, verbs)."""
    own = (resource.group, resource.version, resource.kind)
    for sub in resource.subresources:
        yield sub, _gvk(*SUBRESOURCE_KINDS.get(sub, own)), list(SUBRESOURCE_VERBS.get(sub, ("get",)))


def aggregated(table: ResourceTable, version_: str, *, core: bool) -> Obj:
    """The aggregated discovery document of /api or /apis, in a version of its own kind."""
    items: list[Obj] = []
    for group, versions in groups(table).items():
        if (group == "") == core:
            listed = [{"version": v, "resources": [_aggregated(r) for r in _of(table, group, v)], "freshness": "Current"} for v in versions]
            items.append({"metadata": ({"name": group} if group else {}) | {"creationTimestamp": None}, "versions": listed})
    return {"kind": "APIGroupDiscoveryList", "apiVersion": f"apidiscovery.k8s.io/{version_}", "metadata": {}, "items": items}


def _aggregated(resource: Resource) -> Obj:
    entry: Obj = {
        "resource": resource.plural,
        "responseKind": _gvk(resource.group, resource.version, resource.kind),
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular,
        "verbs": list(resource.verbs),
    }
    subs = [{"subresource": sub, "responseKind": kind, "verbs": verbs} for sub, kind, verbs in _subresources(resource)]
    return entry | _also_called(resource) | ({"subresources": subs} if subs else {})
