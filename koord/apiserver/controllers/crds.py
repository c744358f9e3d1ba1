"""CustomResourceDefinitions at work: a definition in the store is a resource that is served."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from koord.apiserver.controllers.queue import Controller
from koord.apiserver.facts import conditions, set_condition
from koord.apiserver.resources import Resource, version_order
from koord.apiserver.rest.context import DeleteOptions
from koord.apiserver.rest.delete import CRD_CLEANUP, delete_now
from koord.apiserver.schema.structural import Structural, structural
from koord.apiserver.store import DELETED, Entry, Event, Obj
from koord.apiserver.validation.crds import approval, protected, rules_of
from koord.kube.patch import json_equal

if TYPE_CHECKING:
    from koord.apiserver.core import Core


log = logging.getLogger(__name__)

CRD_BUCKET = "apiextensions.k8s.io/customresourcedefinitions"
_ESTABLISHED: Obj = {
    "type": "Established", "status": "True", "reason": "InitialNamesAccepted", "message": "the initial names have been accepted",
}  # fmt: skip
_ACCEPTED: Obj = {"type": "NamesAccepted", "status": "True", "reason": "NoConflicts", "message": "no conflicts found"}
_TERMINATING: Obj = {
    "type": "Terminating", "status": "True", "reason": "InstanceDeletionInProgress", "message": "CustomResource deletion is in progress",
}  # fmt: skip
_CONFORMANT = "KubernetesAPIApprovalPolicyConformant"
_VERBS = ("delete", "deletecollection", "get", "list", "patch", "create", "update", "watch")
_GOING_VERBS = ("delete", "deletecollection", "get", "list", "watch")
# the names of resources, and those of kinds; each of a group's is taken once. The last conflict is told.
_PATH_NAMES, _KIND_NAMES = ("plural", "singular", "shortNames"), ("kind", "listKind")


def _holds(obj: Obj, kind: str) -> bool:
    return bool(conditions(obj).get(kind) == "True")


def _listed(names: Obj, key: str) -> list[str]:
    value = names.get(key) or []
    return [value] if isinstance(value, str) else list(value)


def _names(resource: Resource) -> Obj:
    """The names of what is built in."""
    return {
        "plural": resource.plural, "singular": resource.singular, "shortNames": resource.short_names, "kind": resource.kind,
        "listKind": resource.list_kind,
    }  # fmt: skip


def _accepted_names(crd: Obj, held: list[Obj]) -> tuple[Obj, Obj]:
    """(the names that a definition gets beside those that others of its group hold, the condition that tells of it)."""
    wanted, given = crd["spec"]["names"], (crd.get("status") or {}).get("acceptedNames") or {}
    accepted, condition = {**given, **({"categories": wanted["categories"]} if "categories" in wanted else {})}, _ACCEPTED
    for keys in (_PATH_NAMES, _KIND_NAMES):
        taken = {name for names in held for key in keys for name in _listed(names, key)}
        for key in keys:
            own = frozenset(_listed(given, key))
            clashes = [name for name in _listed(wanted, key) if name in taken and name not in own]
            if clashes:
                told = ", ".join(f'"{name}" is already in use' for name in clashes)
                reason = f"{key[0].upper()}{key[1:]}Conflict"
                condition = {**_ACCEPTED, "status": "False", "reason": reason, "message": told if len(clashes) == 1 else f"[{told}]"}
            elif key in wanted:
                accepted[key] = wanted[key]
            else:
                accepted.pop(key, None)
    return {"plural": "", "kind": "", **accepted}, condition


class CustomResources(Controller[str]):
    """Follows the definitions and keeps the resource table and their statuses."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._served: dict[str, list[Resource]] = {}
        # definitions that go, by the bucket of their objects
        self._terminating: dict[str, str] = {}
        # by definition: the schemas of its versions; and those that all of its objects follow by now
        self._schemas: dict[str, dict[str, Structural]] = {}
        self._followed: dict[str, dict[str, Structural]] = {}

    def start(self) -> None:
        """Serve what is stored already, and follow."""
        bucket = self.core.store.bucket(CRD_BUCKET)
        bucket.listeners.append(self._on_event)  # first: a definition that is established only now is served by it
        for entry in list(bucket.select(None)):
            if _holds(entry.obj, "Established"):
                self._serve(entry)
            else:
                self._establish_soon(entry)
            if entry.obj["metadata"].get("deletionTimestamp"):
                self._follow_end(entry.name)

    def _on_event(self, event: Event) -> None:
        if event.type == DELETED:
            self._withdraw(event.entry.name)
            self._schemas.pop(event.entry.name, None)
            self._followed.pop(event.entry.name, None)
            for entry in self._group(event.entry):  # its names are free
                if not _holds(entry.obj, "NamesAccepted"):
                    self._establish_soon(entry)
            return
        if _holds(event.entry.obj, "Established"):
            self._serve(event.entry)
        if event.entry.obj["metadata"].get("deletionTimestamp"):
            self._follow_end(event.entry.name)
            return
        self._establish_soon(event.entry)

    def _follow_end(self, name: str) -> None:
        """Work on a definition that goes, now and whenever one of its objects is gone."""
        for resource in self._served.get(name, ()):
            if resource.bucket not in self._terminating:
                self._terminating[resource.bucket] = name
                self.core.store.bucket(resource.bucket).listeners.append(self._on_object)
        self.add(name)

    def _establish_soon(self, entry: Entry) -> None:
        """At once, if it can be written: who made the definition is answered when it stands."""
        try:
            self._establish(entry)
        except Exception:
            log.exception("the status of %s cannot be written now", entry.name)
            self.add(entry.name)

    def _group(self, entry: Entry) -> list[Entry]:
        """The other definitions of a definition's group."""
        bucket, group = self.core.store.bucket(CRD_BUCKET), entry.obj["spec"]["group"]
        return [other for other in bucket.select(None) if other.name != entry.name and other.obj["spec"]["group"] == group]

    def _on_object(self, event: Event) -> None:
        """An object of a definition that goes is gone: perhaps it was the last."""
        if event.type == DELETED and event.bucket in self._terminating:
            self.add(self._terminating[event.bucket])

    def _withdraw(self, name: str) -> None:
        for resource in self._served.pop(name, ()):
            self.core.resources.remove(resource)

    def _reshape(self, definition: Entry) -> Iterator[None]:
        """Objects that were stored under a former schema get the defaults that came and lose the fields that went.

        Else that would be the doing of whoever writes to one next, and its generation would count it. Each keeps to the version that it
        is stored in.
        """
        name, spec = definition.name, definition.obj["spec"]
        schemas = self._schemas.get(name, {})
        if self._followed.get(name, {}) == schemas:
            return
        bucket = self.core.store.bucket(f"{spec['group']}/{spec['names']['plural']}")
        for key in list(bucket.entries):
            if self._schemas.get(name) != schemas:  # it has changed again, or is gone
                return
            entry = bucket.entries.get(key)
            schema = schemas.get(entry.obj["apiVersion"]) if entry is not None else None
            if entry is not None and schema is not None:
                obj = entry.copy()
                schema.conform(obj, [])
                if not json_equal(obj, entry.obj):
                    bucket.reshape(entry, obj)
            yield
        self._followed[name] = schemas

    def work(self, name: str) -> Iterator[None]:
        """A definition that goes takes its objects with it; it waits for those that have finalizers. Of others the status is written,
        and their objects follow their schema."""
        entry = self.core.store.bucket(CRD_BUCKET).get("", name)
        if entry is not None and not entry.obj["metadata"].get("deletionTimestamp"):
            self._establish(entry)
            yield from self._reshape(entry)
            return
        if entry is None or CRD_CLEANUP not in (entry.obj["metadata"].get("finalizers") or ()):
            return
        if not _holds(entry.obj, "Terminating"):
            told = entry.copy()
            set_condition(told.setdefault("status", {}), _TERMINATING)
            self.core.store.bucket(CRD_BUCKET).put("", name, told)
        for resource in list(self._served.get(name, ())) or self._unserved(entry.obj):
            bucket = self.core.store.bucket(resource.bucket)
            for key in list(bucket.ordered()):
                found = bucket.entries.get(key)
                if found is not None and not found.obj["metadata"].get("deletionTimestamp"):
                    delete_now(self.core, resource, found, DeleteOptions())
                    yield
            if bucket.entries:
                return
            self._terminating.pop(resource.bucket, None)
            if self._on_object in bucket.listeners:
                bucket.listeners.remove(self._on_object)
        entry = self.core.store.bucket(CRD_BUCKET).get("", name)
        if entry is None or CRD_CLEANUP not in (entry.obj["metadata"].get("finalizers") or ()):
            return
        obj = entry.copy()
        obj["metadata"]["finalizers"] = [f for f in obj["metadata"]["finalizers"] if f != CRD_CLEANUP]
        self.core.settle(self.core.resources.builtin("apiextensions.k8s.io", "customresourcedefinitions"), entry, obj)

    def _unserved(self, crd: Obj) -> list[Resource]:
        """What the objects are of that a definition has which is served in no version: they would be there again when it is made anew."""
        spec, names = crd["spec"], crd["spec"]["names"]
        if any(names["plural"] == resource.plural for resource in self.core.resources.built_in(spec["group"])):
            return []  # they are none of its own
        stored = next(version["name"] for version in spec["versions"] if version.get("storage"))
        return [Resource(spec["group"], stored, names["kind"], names["plural"], spec["scope"] == "Namespaced", crd=crd)]

    def _serve(self, entry: Entry) -> None:
        self._withdraw(entry.name)
        crd = entry.obj
        spec = crd["spec"]
        accepted = (crd.get("status") or {}).get("acceptedNames") or {}
        names = accepted if accepted.get("plural") and accepted.get("kind") else spec["names"]
        if any(names["plural"] == resource.plural for resource in self.core.resources.built_in(spec["group"])):
            return  # a definition of before there was that; its objects are none of what is built in
        going = bool(crd["metadata"].get("deletionTimestamp"))
        served: list[Resource] = []
        ordered = sorted(spec["versions"], key=lambda v: version_order(v["name"]))
        schemas = self._schemas[entry.name] = {}
        for rank, version in enumerate(ordered):
            schema = structural((version.get("schema") or {}).get("openAPIV3Schema") or {"x-kubernetes-preserve-unknown-fields": True})
            schemas[f"{spec['group']}/{version['name']}"] = schema
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
                verbs=_GOING_VERBS if going else _VERBS,
                stored_as=next(f"{spec['group']}/{v['name']}" for v in ordered if v.get("storage")),
                singular=names.get("singular") or "",
                list_kind=names.get("listKind") or "",
                categories=tuple(names.get("categories") or ()),
                rank=rank,
                structural=schema,
                rules=rules_of(schema, "", []),
                crd=crd,
                crd_version=version,
            )
            self.core.resources.add(resource)
            served.append(resource)
        self._served[entry.name] = served
        if self._followed.get(entry.name) != schemas:
            self.add(entry.name)

    def _establish(self, entry: Entry) -> None:
        """Write the status that kube-apiserver's controllers write, unless it stands already. What is established stays so."""
        spec, obj = entry.obj["spec"], entry.copy()
        status = obj.setdefault("status", {})
        held = [(other.obj.get("status") or {}).get("acceptedNames") or {} for other in self._group(entry)]
        held += [_names(resource) for resource in self.core.resources.built_in(spec["group"])]
        names, accepted = _accepted_names(obj, held)
        set_condition(status, accepted)
        if protected(spec["group"]):
            state, text = approval(obj["metadata"])
            told = {"type": _CONFORMANT, "status": str(state == "Approved"), "reason": f"{state}Annotation", "message": text}
            set_condition(status, told)
        if accepted["status"] == "True":
            set_condition(status, _ESTABLISHED)
        elif not _holds(obj, "Established"):
            set_condition(status, {**_ESTABLISHED, "status": "False", "reason": "NotAccepted", "message": "not all names are accepted"})
        stored = [v["name"] for v in spec["versions"] if v.get("storage")]
        versions = list(dict.fromkeys([*(status.get("storedVersions") or []), *stored]))
        status |= {"acceptedNames": names, "storedVersions": versions}
        if obj != entry.obj:
            self.core.store.bucket(CRD_BUCKET).put("", entry.name, obj)
