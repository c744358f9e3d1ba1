"""Create and update: decode, default, admit, check, store."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import orjson

from koord.apiserver import defaulting, errors
from koord.apiserver.admission.matching import CREATE, UPDATE, Attributes
from koord.apiserver.errors import Cause, StatusError
from koord.apiserver.rest import context, services
from koord.apiserver.rest.context import Options
from koord.apiserver.schema import rules
from koord.apiserver.schema.builtin import clean, now, schemas
from koord.apiserver.schema.lists import repeats
from koord.apiserver.store import Bucket, Entry, Obj, make_key
from koord.apiserver.validation import crds, devices, kinds, names  # noqa: F401 - the checks of kinds are registered
from koord.kube.patch import json_equal

if TYPE_CHECKING:
    from koord.apiserver.core import Core
    from koord.apiserver.resources import Resource


# an update whose object changes while a webhook thinks is done again, this often
_RETRIES = 5
_SERVICES, _VOLUMES = "/services", "/persistentvolumes"
_POD_PARTS = ("resize", "ephemeralcontainers")
# an object with one of these is none of its schema: its rules are not asked
_BLOCKING = frozenset({"FieldValueRequired", "FieldValueTypeInvalid", "FieldValueTooLong", "FieldValueTooMany", "FieldValueNotFound"})
_UNCHECKED = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation"
# a generated name that is taken is made anew, this often
_NAME_TRIES = 8


def decode(resource: Resource, obj: Obj, options: Options, *, applied: bool = False) -> None:
    """Prune, normalise and default, in place. Unknown fields are errors, warnings or nothing, by `fieldValidation`."""
    unknown: list[str] = []
    if resource.structural is not None:
        meta = obj.get("metadata")
        if meta is None:  # a patch may take it off
            meta = obj["metadata"] = {}
        elif type(meta) is not dict:
            raise undecodable(resource, "metadata: must be an object")
        clean(schemas().type("V1ObjectMeta"), meta, (None, "metadata"), unknown)
        resource.structural.conform(obj, unknown, nulls=applied)
    elif resource.type is not None:
        try:
            clean(resource.type, obj, None, unknown)
        except StatusError as err:
            raise undecodable(resource, err.message) from err
        obj.setdefault("metadata", {})
    if not unknown and not options.twice:
        return
    texts = [f'duplicate field "{field}"' for field in options.twice]
    texts += [f'unknown field "{field}"' for field in (sorted(unknown) if resource.custom else unknown)]
    if options.field_validation == "Strict":
        raise undecodable(resource, "strict decoding error: " + ", ".join(texts))
    if options.field_validation == "Warn":
        options.warnings.extend(texts)


def undecodable(resource: Resource, why: str) -> StatusError:
    """400 for a body that is no object of its kind."""
    return errors.bad_request(f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: {why}')


_PATHLESS = (
    'metadata.finalizers: "{}": prefer a domain-qualified finalizer name {}to avoid accidental conflicts with other finalizer writers'
)


def _tell(resource: Resource, obj: Obj, options: Options, old: Obj | None = None) -> None:
    """Warn of what an object asks for and does not get, or had better not; once, however often a write is tried."""
    told: list[str] = []
    if resource.custom:
        known = (old or {}).get("metadata", {}).get("finalizers") or ()
        added = sorted(set(obj["metadata"].get("finalizers") or ()).difference(known))
        told = [_PATHLESS.format(name, "including a path (/) " if "." in name else "") for name in names.pathless(added)]
    else:
        rules.warning.run(resource.type, obj, told)
    options.warnings.extend(text for text in told if text not in options.warnings)


def stored_form(resource: Resource, obj: Obj) -> Obj:
    """A decoded object as it is stored, with the defaults of a built-in kind."""
    if resource.from_wire is not None:
        obj = resource.from_wire(obj)
    if resource.type is not None:
        rules.fill(resource.type, obj)
    return obj


def check(resource: Resource, obj: Obj, causes: list[Cause], old: Obj | None = None) -> None:
    """Validate a whole object; `old` is what it replaces."""
    names.metadata(
        obj["metadata"],
        namespaced=resource.namespaced,
        rule=names.name_rule(resource.flags),
        any_finalizer=resource.any_finalizer,
        causes=causes,
    )
    if resource.structural is not None:
        before = len(causes)
        resource.structural.validate(obj, None, causes, old or {})
        if resource.rules is not None:
            if any(cause.kind in _BLOCKING for cause in causes[before:]):
                causes.append(errors.invalid_value("<nil>", None, _UNCHECKED))
            else:
                resource.rules.check(obj, old, None, causes)
        return
    if resource.type is not None:
        rules.check(resource.type, obj, causes)
        if old is None:
            rules.making.run(resource.type, obj, causes)


_TWICE = (
    ".metadata.ownerReferences contains duplicate entries{}; API server dedups owner references in 1.20+, and may reject such requests "
    "as early as 1.24; please fix your requests; duplicate UID(s) observed: {}"
)
_LATE = " after mutating admission happens"


def dedup_owners(meta: Obj, options: Options, when: str = "") -> None:
    """Keep equal owner references once, with a warning; `when` says at what time they were found."""
    refs = meta.get("ownerReferences") or []
    twice = repeats(refs)
    if twice:
        options.warnings.append(_TWICE.format(when, ", ".join(str(refs[at].get("uid")) for at in twice)))
        again = set(twice)
        meta["ownerReferences"] = [ref for at, ref in enumerate(refs) if at not in again]


# -- create --------------------------------------------------------------------------------------------------------------------------


async def create(core: Core, resource: Resource, namespace: str, obj: Obj, options: Options, name: str = "") -> Entry:
    """Create an object. `name` is set where the path names it (a PUT or an apply that creates)."""
    if name:
        options.authorize("create")
    context.check_identity(resource, obj, namespace, name)
    decode(resource, obj, options, applied=options.applied is not None)
    facts = rules.facts(resource.type)
    if "warning" in facts:
        options.warnings.append(facts["warning"])
    _tell(resource, obj, options)
    if obj["metadata"].get("resourceVersion"):
        raise errors.plain_error("resourceVersion should not be set on objects to be created")
    if "create" not in resource.verbs:
        why = "create not allowed while custom resource definition is terminating"
        raise errors.forbidden(resource.plural, resource.group, obj["metadata"].get("name") or "", why)
    obj = stored_form(resource, obj)
    if options.applied is None:
        dedup_owners(obj["metadata"], options)
    # what a client sends as managedFields counts for nothing on create
    obj["metadata"].pop("managedFields", None)
    # what admission changes belongs to nobody
    core.managed.on_create(resource, obj, options)
    attributes = Attributes(CREATE, resource, "", namespace, obj["metadata"].get("name") or "", obj, None, options)
    # webhooks see what the client sent: no uid yet, and no name where it is still to be generated
    obj = await _admitted(core, attributes, obj)
    meta = obj["metadata"]
    dedup_owners(meta, options, _LATE)
    generated = not meta.get("name") and bool(meta.get("generateName"))
    context.prepare_create(resource, meta)
    attributes.name = meta.get("name") or ""
    _prepare_create_status(resource, facts, obj)
    obj = resource.canonical(obj)
    causes: list[Cause] = []
    check(resource, obj, causes)
    if causes:
        raise errors.invalid(resource.kind, resource.group, obj["metadata"].get("name") or "", causes)
    if core.authorizer is not None:
        core.authorizer.check_grant(options.user, resource, namespace, obj, None)
    attributes.obj = obj
    await core.admission.validate(attributes)
    charges = core.admission.quotas.check(attributes)
    final = obj["metadata"]["name"]
    bucket = core.store.bucket(resource.bucket)
    if make_key(namespace, final) in bucket.entries:
        for _ in range(_NAME_TRIES if generated else 0):
            final = obj["metadata"]["name"] = context.generated_name(obj["metadata"]["generateName"])
            if make_key(namespace, final) not in bucket.entries:
                break
        else:
            raise errors.already_exists(resource.plural, resource.group, final)
    if resource.bucket == _SERVICES:
        services.check_free(bucket, make_key(namespace, final), final, obj)
    if options.dry_run:
        return transient(core, namespace, final, obj)
    core.admission.quotas.take(charges)
    return bucket.put(namespace, final, obj)


def created_meanwhile(err: StatusError, bucket: Bucket, namespace: str, name: str) -> bool:
    """Whether an object could not be created because somebody else did so: then that is updated."""
    return err.reason == errors.ALREADY_EXISTS and bucket.get(namespace, name) is not None


async def _admitted(core: Core, attributes: Attributes, obj: Obj) -> Obj:
    """The object after what may change it; it is of the request's namespace still."""
    attributes.reread = partial(_reread, attributes.resource)
    await core.admission.mutate(attributes)
    changed = attributes.require_object()
    if changed is not obj:
        context.check_namespace(attributes.resource, changed.setdefault("metadata", {}), attributes.namespace)
    return changed


def _reread(resource: Resource, obj: Obj) -> Obj:
    """What a webhook returned, decoded and defaulted like what clients send."""
    if resource.from_wire is not None:
        return obj
    if obj.get("kind") != resource.kind:
        raise undecodable(resource, f"it is a {obj.get('kind')}")
    obj.setdefault("metadata", {})
    decode(resource, obj, Options(field_validation="Ignore"))
    return stored_form(resource, obj)


def _prepare_create_status(resource: Resource, facts: Obj, obj: Obj) -> None:
    if resource.status_subresource and "status" not in facts.get("keeps", ()):
        obj.pop("status", None)
        schema = resource.structural
        if schema is not None and "status" in schema.props and schema.props["status"].has_default:
            schema.fill(obj)  # a default of the status as a whole comes back, as it does on the first read from etcd
    if "status" in facts:
        obj["status"] = dict(facts["status"])
    rules.creating.run(resource.type, obj)


def transient(core: Core, namespace: str, name: str, obj: Obj) -> Entry:
    """The answer to a dry run: an entry that was never stored."""
    return Entry(make_key(namespace, name), namespace, name, obj, core.store.rv, orjson.dumps(obj))


# -- update --------------------------------------------------------------------------------------------------------------------------


async def replace(
    core: Core, resource: Resource, namespace: str, name: str, obj: Obj, options: Options, subresource: str = ""
) -> tuple[Entry, bool]:
    """PUT. Returns the stored entry and whether it was created."""
    context.check_identity(resource, obj, namespace, name)
    decode(resource, obj, options)
    obj = stored_form(resource, obj)
    dedup_owners(obj["metadata"], options)
    bucket = core.store.bucket(resource.bucket)
    frozen = orjson.dumps(obj) if core.admission.has_webhooks else b""
    for _ in range(_RETRIES):
        old = bucket.get(namespace, name)
        if old is None:
            if resource.create_on_update and not subresource and not obj["metadata"].get("uid"):
                obj["metadata"].pop("resourceVersion", None)
                try:
                    return await create(core, resource, namespace, obj, options, name), True
                except StatusError as err:
                    if not created_meanwhile(err, bucket, namespace, name):
                        raise  # else this replaces that
                    obj = orjson.loads(frozen)
                    continue
            raise errors.not_found(resource.plural, resource.group, name)
        stored = old.obj
        context.check_version(resource, name, obj["metadata"], stored["metadata"])
        conditional = context.check_seen(resource, name, obj["metadata"])
        entry = await commit(core, resource, old, obj, options, subresource)
        if entry is not None:
            return entry, False
        if conditional:
            break
        obj = orjson.loads(frozen)
    raise errors.conflict(resource.plural, resource.group, name, errors.STALE)


async def commit(
    core: Core,
    resource: Resource,
    old: Entry,
    obj: Obj,
    options: Options,
    subresource: str,
    applied: bool = False,
    view: Callable[[Resource, Obj], Obj] | None = None,
) -> Entry | None:
    """Take an update through admission, validation and into the store; None when the stored object changed meanwhile.

    `obj` is decoded and defaulted, in stored form, and belongs to this function. With a `view` admission is shown that of the object,
    and cannot change it.
    """
    stored = old.obj
    causes: list[Cause] = []
    context.prepare_update(obj["metadata"], stored["metadata"], causes)
    obj = merge_parts(resource, obj, stored, subresource)
    if not applied:
        core.managed.on_update(resource, obj, stored, options, subresource)
    attributes = Attributes(UPDATE, resource, subresource, old.namespace, old.name, obj, stored, options)
    if view is not None:
        attributes.old = view(resource, stored)
    else:
        admitted = await _admitted(core, attributes, obj)
        if admitted is not obj:
            causes.clear()
            context.prepare_update(admitted["metadata"], stored["metadata"], causes)
            obj = merge_parts(resource, admitted, stored, subresource)
    dedup_owners(obj["metadata"], options, _LATE)
    _bump_generation(resource, obj, stored, subresource)
    obj = resource.canonical(obj)
    check(resource, obj, causes, stored)
    if not subresource:
        if resource.type is not None:
            rules.check_update(resource.type, obj, stored, causes)
        _tell(resource, obj, options, stored)
    if subresource and not causes:
        rules.parting.run(resource.type, subresource, obj, stored, causes)
    if causes:
        raise errors.invalid(resource.kind, resource.group, old.name, causes)
    if core.authorizer is not None:
        core.authorizer.check_grant(options.user, resource, old.namespace, obj, stored)
    attributes.obj = view(resource, obj) if view is not None else obj
    await core.admission.validate(attributes)
    bucket = core.store.bucket(resource.bucket)
    if bucket.entries.get(old.key) is not old:
        return None
    if same_object(obj, stored):
        return old
    if resource.bucket == _SERVICES:
        services.check_free(bucket, old.key, old.name, obj, stored)
    charges = core.admission.quotas.check(attributes)
    if options.dry_run:
        return transient(core, old.namespace, old.name, obj)
    core.admission.quotas.take(charges)
    return core.settle(resource, old, obj)


def same_object(new: Obj, old: Obj) -> bool:
    """Nothing changed: then nothing is written and the version stays. Only the times of managed fields may differ."""
    if json_equal(new, old):
        return True
    if not (new["metadata"].get("managedFields") and old["metadata"].get("managedFields")):
        return False
    views = []
    for obj in (new, old):
        fields = [{**entry, "time": 0} for entry in obj["metadata"]["managedFields"]]
        views.append({**obj, "metadata": {**obj["metadata"], "managedFields": fields}})
    return json_equal(*views)


# the part of the metadata that a write of the status leaves alone
_STATUS_KEEPS = {"Pod": "ownerReferences", "Deployment": "labels"}


def merge_parts(resource: Resource, obj: Obj, stored: Obj, subresource: str) -> Obj:
    """What a write may change: the main resource all but the status, a subresource its part and the metadata."""
    if subresource == "status":
        out = {k: v for k, v in stored.items() if k not in ("status", "metadata")}
        if resource.bare_status:
            meta = dict(stored["metadata"])
            if "managedFields" in obj["metadata"]:
                meta["managedFields"] = obj["metadata"]["managedFields"]
            out["metadata"] = meta
        else:
            out["metadata"] = obj["metadata"]
            if resource.kind in _STATUS_KEEPS:
                context.carry_over(_STATUS_KEEPS[resource.kind], stored["metadata"], out["metadata"])
        if "status" in obj:
            out["status"] = obj["status"]
        if resource.kind == "Pod":
            _keep_seen(out.setdefault("status", {}), stored.get("status") or {})
        elif resource.kind == "DaemonSet" and not resource.custom:
            _count_template(out, stored)
        elif resource.bucket == _VOLUMES:
            _stamp_phase(out.setdefault("status", {}), stored.get("status") or {})
        return out
    if subresource == "finalize":
        finalizers = (obj.get("spec") or {}).get("finalizers")
        return {**stored, "metadata": obj["metadata"], "spec": {"finalizers": finalizers} if finalizers else {}}
    if subresource in _POD_PARTS:
        return _pod_part(obj, stored, subresource)
    if resource.status_subresource:
        context.carry_over("status", stored, obj)
    if "spec" in rules.facts(resource.type).get("keeps", ()):
        obj["spec"] = stored.get("spec", {})
    if resource.custom:
        return obj
    if resource.kind == "DaemonSet":
        _count_template(obj, stored)
    elif resource.kind == "Service":
        services.keep(obj, stored)
    return obj


def _count_template(obj: Obj, stored: Obj) -> None:
    """Nobody writes how often the template of a DaemonSet has changed."""
    seen = (stored["metadata"].get("annotations") or {}).get(defaulting.TEMPLATE_GENERATION, "1")
    changed = not json_equal(obj["spec"].get("template"), stored["spec"].get("template"))
    generation = str(int(seen) + 1) if changed and seen.isdecimal() else seen
    obj["metadata"].setdefault("annotations", {})[defaulting.TEMPLATE_GENERATION] = generation


def _stamp_phase(status: Obj, before: Obj) -> None:
    """When a volume came into its phase, unless its writer says so."""
    known = before.get("lastPhaseTransitionTime")
    if status.get("phase") != before.get("phase") and status.get("lastPhaseTransitionTime") in (None, known):
        status["lastPhaseTransitionTime"] = now()
    elif known and not status.get("lastPhaseTransitionTime"):
        status["lastPhaseTransitionTime"] = known


def _keep_seen(status: Obj, before: Obj) -> None:
    """What a writer of a pod's status leaves out stays: the quality of service, and which generations were seen."""
    for key in ("qosClass", "observedGeneration"):
        if before.get(key) and not status.get(key):
            status[key] = before[key]
    known: dict[str, list[int]] = {}  # a type may come more than once
    for condition in before.get("conditions") or ():
        known.setdefault(condition.get("type"), []).append(condition.get("observedGeneration") or 0)
    for condition in status.get("conditions") or ():
        seen = known.get(condition.get("type"))
        generation = seen.pop(0) if seen else 0
        if generation and not condition.get("observedGeneration"):
            condition["observedGeneration"] = generation


def _pod_part(obj: Obj, stored: Obj, subresource: str) -> Obj:
    """pods/resize changes the resources of containers, pods/ephemeralcontainers the ephemeral containers, and nothing else."""
    out: Obj = orjson.loads(orjson.dumps(stored))
    if obj["metadata"].get("managedFields"):
        out["metadata"]["managedFields"] = obj["metadata"]["managedFields"]
    spec, wanted = out["spec"], obj.get("spec") or {}
    if subresource == "ephemeralcontainers":
        spec["ephemeralContainers"] = wanted.get("ephemeralContainers") or []
        return out
    for key in ("containers", "initContainers"):
        known, given = spec.get(key) or [], wanted.get(key) or []
        if [container.get("name") for container in given] != [container["name"] for container in known]:
            spec[key] = given  # that is for the validation to refuse
            continue
        for container, changed in zip(known, given, strict=True):
            container["resources"] = changed.get("resources") or {}
            if "resizePolicy" in changed:
                container["resizePolicy"] = changed["resizePolicy"]
    return out


# the part of the metadata whose changes count as those of a specification
_COUNTED = {"Deployment": "annotations", "EndpointSlice": "labels"}


def _bump_generation(resource: Resource, obj: Obj, stored: Obj, subresource: str) -> None:
    """Count a change of anything but metadata and status."""
    if not resource.has_generation or subresource == "status" or "i" in resource.flags:
        return
    counted = _COUNTED.get(resource.kind, "") if not resource.custom else ""
    changed = (obj["metadata"].get(counted) or {}) != (stored["metadata"].get(counted) or {})
    ignored = {"metadata", "kind", "apiVersion"} | ({"status"} if resource.status_subresource or not resource.custom else set())
    if changed or not all(json_equal(obj.get(key), stored.get(key)) for key in (obj.keys() | stored.keys()) - ignored):
        obj["metadata"]["generation"] = stored["metadata"].get("generation", 0) + 1
