"""CustomResourceDefinitions at work: a definition in the store is a resource that is served."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from koord.apiserver.resources import Resource
from koord.apiserver.schema.structural import Structural
from koord.apiserver.schema.timeformat import now
from koord.apiserver.store import DELETED, Entry, Event

if TYPE_CHECKING:
    from koord.apiserver.core import Core

Obj = dict[str, Any]

CRD_BUCKET = "apiextensions.k8s.io/customresourcedefinitions"
_CLEANUP = "customresourcecleanup.apiextensions.k8s.io"


def _rank(version: str) -> tuple[int, int, int, str]:
    """Kubernetes' order of versions: v2, v1, v1beta2, v1beta1, v1alpha1, then the others by name."""
    import re

    found = re.fullmatch(r"v(\d+)(?:(alpha|beta)(\d+))?", version)
    if found is None:
        return (1, 0, 0, version)
    stage = {"alpha": 2, "beta": 1, None: 0}[found.group(2)]
    return (0, stage * 10_000 - int(found.group(1)), -int(found.group(3) or 0), "")


class CustomResources:
    """Follows the definitions and keeps the resource table and their statuses."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._served: dict[str, list[Resource]] = {}

    def start(self) -> None:
        """Serve what is stored already, and follow."""
        bucket = self.core.store.bucket(CRD_BUCKET)
        for entry in list(bucket.select(None)):
            self._serve(entry)
        bucket.listeners.append(self._on_event)

    def _on_event(self, event: Event) -> None:
        if event.type == DELETED:
            self._withdraw(event.entry.name, drop_objects=True)
            return
        self._serve(event.entry)
        if event.entry.obj["metadata"].get("deletionTimestamp"):
            self._finalize(event.entry)
            return
        self._establish(event.entry)

    def _withdraw(self, name: str, *, drop_objects: bool) -> None:
        for resource in self._served.pop(name, ()):
            self.core.resources.remove(resource)
            if drop_objects:
                self._drop_objects(resource)

    def _drop_objects(self, resource: Resource) -> None:
        bucket = self.core.store.bucket(resource.bucket)
        for entry in list(bucket.select(None)):
            bucket.remove(entry.namespace, entry.name)

    def _finalize(self, entry: Entry) -> None:
        """A definition that goes takes its objects with it."""
        if _CLEANUP not in (entry.obj["metadata"].get("finalizers") or ()):
            return
        for resource in self._served.get(entry.name, ()):
            self._drop_objects(resource)
        obj = entry.copy()
        obj["metadata"]["finalizers"] = [f for f in obj["metadata"]["finalizers"] if f != _CLEANUP]
        owner = self.core.resources.by_path("apiextensions.k8s.io", "v1", "customresourcedefinitions")
        assert owner is not None
        if obj["metadata"]["finalizers"]:
            self.core.store.bucket(CRD_BUCKET).put("", entry.name, obj)
        else:
            self.core.finish_deletion(owner, entry, obj)

    def _serve(self, entry: Entry) -> None:
        self._withdraw(entry.name, drop_objects=False)
        crd = entry.obj
        spec = crd["spec"]
        names = spec["names"]
        served: list[Resource] = []
        ordered = sorted(spec["versions"], key=lambda v: _rank(v["name"]))
        for rank, version in enumerate(ordered):
            if not version.get("served"):
                continue
            subs = version.get("subresources") or {}
            resource = Resource(
                spec["group"],
                version["name"],
                names["kind"],
                names["plural"],
                spec["scope"] == "Namespaced",
                tuple(names.get("shortNames") or ()),
                tuple(s for s in ("status", "scale") if s in subs),
                singular=names.get("singular") or "",
                list_kind=names.get("listKind") or "",
                categories=tuple(names.get("categories") or ()),
                rank=rank,
                structural=Structural(
                    (version.get("schema") or {}).get("openAPIV3Schema") or {"x-kubernetes-preserve-unknown-fields": True}
                ),
                crd=crd,
                crd_version=version,
            )
            self.core.resources.add(resource)
            served.append(resource)
        self._served[entry.name] = served

    def _establish(self, entry: Entry) -> None:
        """Write the status that kube-apiserver's controllers write, unless it stands already."""
        spec = entry.obj["spec"]
        status = entry.obj.get("status") or {}
        wanted_names = spec["names"]
        stored = [v["name"] for v in spec["versions"] if v.get("storage")]
        versions = list(dict.fromkeys([*(status.get("storedVersions") or []), *stored]))
        established = any(c.get("type") == "Established" and c.get("status") == "True" for c in status.get("conditions") or ())
        if established and status.get("acceptedNames") == wanted_names and status.get("storedVersions") == versions:
            return
        obj = entry.copy()
        moment = now()
        kept = [c for c in status.get("conditions") or () if c.get("type") not in ("NamesAccepted", "Established")]
        obj["status"] = {
            "conditions": [
                *kept,
                _condition("NamesAccepted", "NoConflicts", "no conflicts found", moment),
                _condition("Established", "InitialNamesAccepted", "the initial names have been accepted", moment),
            ],
            "acceptedNames": wanted_names,
            "storedVersions": versions,
        }
        finalizers = obj["metadata"].setdefault("finalizers", [])
        if _CLEANUP not in finalizers:
            finalizers.append(_CLEANUP)
        self.core.store.bucket(CRD_BUCKET).put("", entry.name, obj)


def _condition(kind: str, reason: str, message: str, moment: str) -> Obj:
    return {"type": kind, "status": "True", "lastTransitionTime": moment, "reason": reason, "message": message}
