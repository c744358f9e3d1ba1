"""Deletion: preconditions, grace periods, finalizers, propagation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from koord import seams
from koord.api.times import format_time, parse_time
from koord.apiserver.admission.matching import DELETE, Attributes
from koord.apiserver.errors import bad_request, invalid, invalid_value, not_supported
from koord.apiserver.facts import ended
from koord.apiserver.rest.context import DeleteOptions, check_preconditions, whole_number
from koord.apiserver.rest.write import transient
from koord.apiserver.schema.builtin import clean, now, schemas
from koord.apiserver.store import Entry, Obj

if TYPE_CHECKING:
    from koord.apiserver.core import Core
    from koord.apiserver.resources import Resource
    from koord.apiserver.rest.context import Options


ORPHAN, FOREGROUND = "orphan", "foregroundDeletion"
CRD_CLEANUP = "customresourcecleanup.apiextensions.k8s.io"
_POLICIES = ("Foreground", "Background", "Orphan")
# whose dependents stay where nobody says otherwise, as before there were policies
_KEEPS_DEPENDENTS = {("batch", "Job"), ("", "ReplicationController")}
_PODS_STAY = (
    "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set "
    "propagationPolicy=Orphan to suppress this warning"
)


def parse_options(body: Obj | None, query: dict[str, str]) -> DeleteOptions:
    """DeleteOptions from the body, or from the query where there is no body."""
    wire: Obj = dict(body or {})
    if body:
        if body.get("kind", "DeleteOptions") != "DeleteOptions":
            raise bad_request(f'no kind "{body["kind"]}" is registered for version "{body.get("apiVersion", "")}" in DeleteOptions')
        clean(schemas().type("V1DeleteOptions"), wire, None, [])
    else:
        wire = {key: query[key] for key in ("gracePeriodSeconds", "propagationPolicy", "orphanDependents") if query.get(key)}
        if "gracePeriodSeconds" in wire:
            wire["gracePeriodSeconds"] = whole_number(query, "gracePeriodSeconds")
        if "orphanDependents" in wire:
            wire["orphanDependents"] = query["orphanDependents"] in ("true", "1")
    causes = []
    if wire.get("dryRun") and wire["dryRun"] != ["All"]:
        causes.append(not_supported("dryRun", wire["dryRun"], ("All",)))
    policy = wire.get("propagationPolicy")
    if "orphanDependents" in wire and "propagationPolicy" in wire:
        causes.append(invalid_value("propagationPolicy", policy, "orphanDependents and deletionPropagation cannot be both set"))
    elif policy and policy not in _POLICIES:
        causes.append(not_supported("propagationPolicy", policy, (*_POLICIES, "nil")))
    if causes:
        raise invalid("DeleteOptions", "meta.k8s.io", "", causes)
    if "orphanDependents" in wire:
        policy = "Orphan" if wire["orphanDependents"] else "Background"
    uid, version = ((wire.get("preconditions") or {}).get(key) or "" for key in ("uid", "resourceVersion"))
    shown = {**wire, "kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1"}
    return DeleteOptions(wire.get("gracePeriodSeconds"), policy or "", uid, version, bool(wire.get("dryRun")), shown)


def grace_period(resource: Resource, obj: Obj, wanted: int | None) -> int | None:
    """Seconds that a pod gets; None for kinds that are deleted at once."""
    if resource.kind != "Pod" or resource.group:
        return None
    given = 1 if wanted is not None and wanted < 0 else wanted
    meta, spec = obj["metadata"], obj.get("spec") or {}
    if meta.get("deletionTimestamp"):  # it goes already: it can only be told to go sooner, and only by who says when
        left = int(meta.get("deletionGracePeriodSeconds") or 0)
        return left if given is None else min(left, given)
    if not spec.get("nodeName") or ended(obj):
        return 0
    seconds = int(spec.get("terminationGracePeriodSeconds", 30)) if given is None else given
    return 1 if seconds < 0 else seconds


def _finalizers(core: Core, resource: Resource, meta: Obj, propagation: str) -> list[str]:
    """The finalizers after the propagation policy had its say, or the resource's own where there is none. Without a collector, whom they
    would wait for, there are no policies."""
    if "garbagecollector" in core.config.disabled_controllers:
        propagation = ""
    elif not propagation and (resource.group, resource.kind) in _KEEPS_DEPENDENTS and FOREGROUND not in (meta.get("finalizers") or ()):
        propagation = "Orphan"
    finalizers = [f for f in meta.get("finalizers") or () if not (propagation and f in (ORPHAN, FOREGROUND))]
    if resource.kind == "CustomResourceDefinition" and CRD_CLEANUP not in finalizers and not meta.get("deletionTimestamp"):
        finalizers.append(CRD_CLEANUP)
    if propagation == "Orphan":
        finalizers.append(ORPHAN)
    elif propagation == "Foreground":
        finalizers.append(FOREGROUND)
    return finalizers


async def delete(core: Core, resource: Resource, namespace: str, name: str, options: Options, wanted: DeleteOptions) -> tuple[Entry, bool]:
    """Delete an object. Returns its last state, and whether it is gone (else it waits for its grace period or its finalizers)."""
    entry = core.entry(resource, namespace, name)
    check_preconditions(resource, name, entry.obj["metadata"], wanted.precondition_uid, wanted.precondition_rv)
    attributes = Attributes(DELETE, resource, "", namespace, name, None, entry.obj, options, wire_options=wanted.wire)
    await core.admission.mutate(attributes)
    await core.admission.validate(attributes)
    if core.admission.has_webhooks:
        entry = core.entry(resource, namespace, name)
        check_preconditions(resource, name, entry.obj["metadata"], wanted.precondition_uid, wanted.precondition_rv)
    if not wanted.propagation and resource.kind == "Job" and resource.group == "batch" and _PODS_STAY not in options.warnings:
        options.warnings.append(_PODS_STAY)
    return delete_now(core, resource, entry, wanted, dry_run=options.dry_run)


def delete_now(core: Core, resource: Resource, entry: Entry, wanted: DeleteOptions, *, dry_run: bool = False) -> tuple[Entry, bool]:
    """The deletion itself, after admission."""
    bucket = core.store.bucket(resource.bucket)
    stored = entry.obj
    meta = stored["metadata"]
    finalizers = _finalizers(core, resource, meta, wanted.propagation)
    grace = grace_period(resource, stored, wanted.grace_period_seconds)
    waits_for_content = resource.kind == "Namespace" and not resource.group and (stored.get("spec") or {}).get("finalizers")
    if not finalizers and not grace and not waits_for_content:
        if not dry_run:
            bucket.remove(entry.namespace, entry.name)
        return _last_state(entry) if grace == 0 else entry, True
    obj = entry.copy()
    changed = _mark(resource, obj, grace or 0)
    if finalizers != (meta.get("finalizers") or []):
        obj["metadata"]["finalizers"] = finalizers
        changed = True
    if waits_for_content and (obj.get("status") or {}).get("phase") != "Terminating":
        obj.setdefault("status", {})["phase"] = "Terminating"
        changed = True
    if not changed:
        return entry, False
    if dry_run:
        return transient(core, entry.namespace, entry.name, obj), False
    return bucket.put(entry.namespace, entry.name, obj), False


def _last_state(entry: Entry) -> Entry:
    """What the answer to the deletion of a pod shows: marked as deleted now, though nothing was stored."""
    obj = entry.copy()
    meta = obj["metadata"]
    if "deletionTimestamp" not in meta:
        meta["deletionTimestamp"] = now()
        meta["generation"] = meta.get("generation", 0) + 1
    meta["deletionGracePeriodSeconds"] = 0
    return Entry(entry.key, entry.namespace, entry.name, obj, entry.rv, orjson.dumps(obj))


def _mark(resource: Resource, obj: Obj, grace: int) -> bool:
    """Set the deletion timestamp, or bring it forward; False when it stands already."""
    meta = obj["metadata"]
    if meta.get("deletionTimestamp"):
        before = meta.get("deletionGracePeriodSeconds") or 0
        if grace >= before:
            return False
        started = parse_time(meta["deletionTimestamp"]) - before
        meta["deletionTimestamp"] = format_time(max(started + grace, seams.now()))
        meta["deletionGracePeriodSeconds"] = grace
        return True
    meta["deletionTimestamp"] = format_time(seams.now() + grace)
    if resource.kind != "Namespace":
        meta["deletionGracePeriodSeconds"] = grace
    if meta.get("generation"):
        meta["generation"] += 1
    return True
