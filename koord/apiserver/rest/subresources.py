"""What is answered and not stored as such: binding, eviction, scale, token, and reviews of tokens and access."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from koord import seams
from koord.api.selectors import from_label_selector
from koord.api.times import format_time
from koord.apiserver.admission.matching import CREATE, UPDATE, Attributes
from koord.apiserver.errors import STALE, StatusError, bad_request, conflict, invalid, invalid_value, plain_error
from koord.apiserver.facts import is_ready, set_condition
from koord.apiserver.rbac import MASTERS, of_review
from koord.apiserver.resources import SUBRESOURCE_KINDS, api_version
from koord.apiserver.rest import context
from koord.apiserver.rest.delete import delete_now, parse_options
from koord.apiserver.rest.write import commit, decode
from koord.apiserver.schema.builtin import clean, now, schemas
from koord.apiserver.ssa import fields as sets
from koord.apiserver.ssa.apply import check_manager, conflict_error
from koord.apiserver.ssa.fields import APPLY, Record
from koord.apiserver.store import Entry, Obj
from koord.apiserver.tables.table import find
from koord.apiserver.tokens import BOUND, ISSUER, TokenError
from koord.apiserver.users import User

if TYPE_CHECKING:
    from koord.apiserver.core import Core
    from koord.apiserver.resources import Resource
    from koord.apiserver.rest.context import Options


_CREATED: Obj = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
_PDBS = "policy/poddisruptionbudgets"
# evicted pods that a budget remembers until they are seen going; more than this is a sign of a broken controller
_MAX_DISRUPTED = 2000


async def bind(core: Core, namespace: str, name: str, body: Obj, options: Options) -> Obj:
    """POST pods/x/binding: set the node of a pod that has none. Answers with a Status."""
    resource = core.resources.builtin("", "pods")
    attributes = await _mutated(core, resource, namespace, name, "binding", _decoded("binding", namespace, body), options)
    body = attributes.require_object()
    meta = _named(body, name)
    target = body.get("target") or {}
    if target.get("kind") not in (None, "", "Node"):
        raise plain_error(f'target.kind: Unsupported value: "{target["kind"]}": supported values: "Node", "<empty>"')
    if not target.get("name"):
        raise plain_error("target.name: Required value")
    await core.admission.validate(attributes)
    entry = core.entry(resource, namespace, name)
    stored = entry.obj
    context.check_stored(resource, name, meta.get("uid") or "", meta.get("resourceVersion") or "", stored["metadata"])
    if stored["metadata"].get("deletionTimestamp"):
        raise conflict("pods/binding", "", name, f"pod {name} is being deleted, cannot be assigned to a host")
    assigned = (stored.get("spec") or {}).get("nodeName")
    if assigned:
        raise conflict("pods/binding", "", name, f'pod {name} is already assigned to node "{assigned}"')
    if stored["spec"].get("schedulingGates"):
        raise conflict("pods/binding", "", name, f"pod {name} has non-empty .spec.schedulingGates")
    obj = entry.copy()
    obj["spec"]["nodeName"] = target["name"]
    for key in ("annotations", "labels"):
        if meta.get(key):
            obj["metadata"].setdefault(key, {}).update(meta[key])
    status = obj.setdefault("status", {})
    status.pop("nominatedNodeName", None)  # it has its node, and waits for no other
    set_condition(status, {"type": "PodScheduled", "status": "True", "lastProbeTime": None})
    core.managed.on_update(resource, obj, stored, options, "")
    if not options.dry_run:
        core.store.bucket(resource.bucket).put(namespace, name, obj)
    return dict(_CREATED)


_VERSIONS = {"binding": ("v1",), "eviction": ("policy/v1", "policy/v1beta1")}
_TYPES = {"binding": "V1Binding", "eviction": "V1Eviction", "scale": "V1Scale", "token": "AuthenticationV1TokenRequest"}


async def _mutated(
    core: Core, resource: Resource, namespace: str, name: str, subresource: str, body: Obj, options: Options, old: Obj | None = None
) -> Attributes:
    """The request for a subresource, with the body as admission has changed it."""
    attributes = Attributes(CREATE if old is None else UPDATE, resource, subresource, namespace, name, body, old, options)
    attributes.reread = partial(_reread, subresource)
    await core.admission.mutate(attributes)
    return attributes


def _decoded(subresource: str, namespace: str, body: Obj) -> Obj:
    """What a client sends for a pod of a namespace; it may leave out what the path says. Raises 400."""
    kind, versions = SUBRESOURCE_KINDS[subresource][2], _VERSIONS[subresource]
    given, spelt = body.get("kind") or kind, str(body.get("apiVersion") or versions[0])
    if given != kind or spelt not in versions:
        version = spelt.rpartition("/")[2]
        raise bad_request(f'{given} in version "{version}" cannot be handled as a {kind}: it is no {kind} of {versions[0]}')
    body = _reread(subresource, {**body, "kind": kind})
    if (body.get("metadata") or {}).get("namespace") not in (None, "", namespace):
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    return body


def _named(body: Obj, name: str) -> Obj:
    """The metadata of what is posted to a pod. Raises 400 where they name another."""
    meta: Obj = body.get("metadata") or {}
    if meta.get("name") != name:
        raise bad_request(f"name in URL does not match name in {body['kind']} object")
    return meta


def _reread(subresource: str, body: Obj) -> Obj:
    """What a webhook returned, decoded like what clients send."""
    group, version, kind = SUBRESOURCE_KINDS[subresource]
    if body.get("kind") != kind:
        raise bad_request(f'{kind} in version "{api_version(group, version)}" cannot be handled as a {kind}: it is a {body.get("kind")}')
    clean(schemas().type(_TYPES[subresource]), body, None, [])
    return body


# -- eviction ------------------------------------------------------------------------------------------------------------------------


async def evict(core: Core, namespace: str, name: str, body: Obj, options: Options) -> Obj:
    """POST pods/x/eviction: delete the pod if its disruption budgets allow it, else 429."""
    resource = core.resources.builtin("", "pods")
    attributes = await _mutated(core, resource, namespace, name, "eviction", _decoded("eviction", namespace, body), options)
    body = attributes.require_object()
    wanted = parse_options(body.get("deleteOptions") or {}, {})
    _named(body, name)
    await core.admission.validate(attributes)
    entry = core.entry(resource, namespace, name)
    pod = entry.obj
    dry_run = options.dry_run or "All" in (wanted.wire.get("dryRun") or ())
    # pods that do not run (any more, or yet) disrupt nobody
    idle = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed", "Pending")
    if not idle and not pod["metadata"].get("deletionTimestamp"):
        _ask_budgets(core, pod, dry_run=dry_run)
    context.check_preconditions(resource, name, pod["metadata"], wanted.precondition_uid, wanted.precondition_rv)
    if not dry_run:
        delete_now(core, resource, _told(core, resource, core.entry(resource, namespace, name), options), wanted)
    return dict(_CREATED)


def _told(core: Core, resource: Resource, entry: Entry, options: Options) -> Entry:
    """The pod with the condition that says why it goes."""
    obj = entry.copy()
    reason = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting"}
    set_condition(obj.setdefault("status", {}), reason)
    core.managed.on_update(resource, obj, entry.obj, options, "status")
    return core.store.bucket(resource.bucket).put(entry.namespace, entry.name, obj)


def _ask_budgets(core: Core, pod: Obj, *, dry_run: bool) -> None:
    """Take one disruption off the pod's budget. Raises 429 when there is none left, 500 for several budgets."""
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    labels = pod["metadata"].get("labels") or {}
    bucket = core.store.bucket(_PDBS)
    found = [e for e in bucket.select(namespace) if from_label_selector((e.obj.get("spec") or {}).get("selector")).matches(labels)]
    if len(found) > 1:
        raise plain_error("This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.")
    if not found:
        return
    entry = found[0]
    budget = entry.obj
    status = budget.get("status") or {}
    if not is_ready(pod):
        policy = (budget.get("spec") or {}).get("unhealthyPodEvictionPolicy") or "IfHealthyBudget"
        enough = status.get("currentHealthy", 0) >= status.get("desiredHealthy", 0) and status.get("desiredHealthy", 0) > 0
        if policy == "AlwaysAllow" or enough:
            return
    if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 0):
        raise _refused(f"The disruption budget {entry.name} is still being processed by the server.", 10)
    allowed = status.get("disruptionsAllowed", 0)
    if len(status.get("disruptedPods") or {}) > _MAX_DISRUPTED:
        raise _refused("DisruptedPods map too big - too many evictions not confirmed by PDB controller")
    if allowed <= 0:
        healthy, wanted = status.get("currentHealthy", 0), status.get("desiredHealthy", 0)
        text = f"The disruption budget {entry.name} needs {wanted} healthy pods and has {healthy} currently"
        if healthy > wanted:
            text = f"The disruption budget {entry.name} does not allow evicting pods currently"
        raise _refused(text)
    if dry_run:
        return
    obj = entry.copy()
    obj["status"]["disruptionsAllowed"] = allowed - 1
    obj["status"].setdefault("disruptedPods", {})[name] = now()
    if allowed == 1:
        spent = {"type": "DisruptionAllowed", "status": "False", "reason": "InsufficientPods", "message": ""}
        set_condition(obj["status"], {**spent, "observedGeneration": status.get("observedGeneration", 0)})
    bucket.put(entry.namespace, entry.name, obj)


def _refused(text: str, retry_after: int = 0) -> StatusError:
    details: Obj = {"causes": [{"reason": "DisruptionBudget", "message": text}]}
    details |= {"retryAfterSeconds": retry_after} if retry_after else {}
    return StatusError(429, "TooManyRequests", "Cannot evict pod as it would violate the pod's disruption budget.", details)


# -- scale ---------------------------------------------------------------------------------------------------------------------------


def _dig(obj: Obj, path: str) -> Any:
    return next(iter(find(obj, path)), None)


def _scale_paths(resource: Resource) -> tuple[str, str, str]:
    """Where a kind keeps its replicas (wanted, observed) and its selector."""
    if resource.crd_version is not None:
        scale = (resource.crd_version.get("subresources") or {}).get("scale") or {}
        return scale["specReplicasPath"], scale["statusReplicasPath"], scale.get("labelSelectorPath", "")
    return "spec.replicas", "status.replicas", ""


def scale_of(resource: Resource, obj: Obj) -> Obj:
    """The Scale view of a workload."""
    wanted, observed, selector = _scale_paths(resource)
    meta = {k: obj["metadata"][k] for k in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp") if k in obj["metadata"]}
    spec = {"replicas": replicas} if (replicas := _dig(obj, wanted)) is not None else {}
    status = {"replicas": _dig(obj, observed) or 0}
    if selector:
        text = _dig(obj, selector) or ""
    elif resource.kind == "ReplicationController":
        text = ",".join(f"{k}={v}" for k, v in sorted((obj["spec"].get("selector") or {}).items()))
    else:
        text = str(from_label_selector(obj["spec"].get("selector")))
    if text:
        status["selector"] = text
    return {"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": meta, "spec": spec, "status": status}


async def write_scale(
    core: Core, resource: Resource, entry: Entry, change: Callable[[Obj], Obj], options: Options, *, applied: bool = False
) -> Obj:
    """Set the replicas to those of the Scale that `change` makes of the present one, or `applied`: apply them. Who does so owns them."""
    if applied:
        check_manager(options)
    for _ in range(5):
        entry = core.entry(resource, entry.namespace, entry.name)
        before = scale_of(resource, entry.obj)
        scale = {"kind": "Scale", "apiVersion": "autoscaling/v1", **change(deepcopy(before))}
        if scale["kind"] != "Scale":
            raise bad_request(f"expected input object type to be Scale, but {scale['kind']}")
        clean(schemas().type("V1Scale"), scale, None, [])
        if not applied:
            context.check_name(scale.setdefault("metadata", {}), entry.name)
            context.check_namespace(resource, scale["metadata"], entry.namespace)
        attributes = await _mutated(core, resource, entry.namespace, entry.name, "scale", scale, options, before)
        wanted = attributes.require_object()
        replicas = (wanted.get("spec") or {}).get("replicas", 0)
        if replicas < 0:
            cause = invalid_value("spec.replicas", replicas, "must be greater than or equal to 0")
            raise invalid("Scale", "autoscaling", entry.name, [cause])
        context.check_version(resource, entry.name, wanted.get("metadata") or {}, entry.obj["metadata"])
        obj = entry.copy()
        target = obj
        *parents, last = _scale_paths(resource)[0].strip(".").split(".")
        for key in parents:
            target = target.setdefault(key, {})
        target[last] = replicas
        if applied:
            _own_replicas(resource, obj, options, changes=_dig(entry.obj, _scale_paths(resource)[0]) != replicas)
        done = await commit(core, resource, entry, obj, options, "scale", applied, scale_of)
        if done is not None:
            return scale_of(resource, done.obj)
    raise conflict(resource.plural, resource.group, entry.name, STALE)


def _own_replicas(resource: Resource, obj: Obj, options: Options, *, changes: bool) -> None:
    """Make the replicas those of who applies them. Raises 409 when that changes what others own, unless forced."""
    place = tuple(f"f:{key}" for key in _scale_paths(resource)[0].strip(".").split("."))
    mine = Record(options.field_manager, APPLY, resource.api_version, "scale", frozenset({place}), now())
    others = [record for record in sets.read(obj["metadata"].get("managedFields") or ()) if record.key != mine.key]
    owners = [record for record in others if place in record.fields] if changes else []
    if owners and not options.force:
        # told in terms of the Scale, where they are always spec.replicas
        raise conflict_error([(replace(record, api_version="autoscaling/v1"), frozenset({("f:spec", "f:replicas")})) for record in owners])
    for record in owners:
        record.fields -= {place}
    sets.write(obj["metadata"], [*others, mine])


# -- serviceaccounts/token -----------------------------------------------------------------------------------------------------------


_LEAST_SECONDS, _MOST_SECONDS, _USUAL_SECONDS = 600, 1 << 32, 3600


def _bound_to(core: Core, account: Entry, ref: Obj) -> dict[str, Entry | str]:
    """What a token ends with by kind, and the node of a pod, which it tells of. Raises 400 for what nothing is bound to, 404, 409."""
    kind, name = ref.get("kind") or "", ref.get("name") or ""
    if kind not in BOUND or ref.get("apiVersion") not in (None, "", "v1"):
        shown = f"{ref.get('apiVersion') or ''}, Kind={kind}"
        raise bad_request(f'cannot bind token for serviceaccount "{account.name}" to {shown}')
    found = core.entry(core.resources.builtin("", BOUND[kind][1:]), "" if kind == "Node" else account.namespace, name)
    uid = found.obj["metadata"]["uid"]
    if kind == "Pod" and (found.obj["spec"].get("serviceAccountName") or "default") != account.name:
        why = f'cannot bind token for serviceaccount "{account.name}" to pod running with different serviceaccount name.'
        raise bad_request(why)
    if ref.get("uid") and ref["uid"] != uid:
        why = f"the UID in the bound object reference ({ref['uid']}) does not match the UID in record. The object might have been deleted and then recreated"  # noqa: E501
        raise conflict(kind, "", name, why)
    out: dict[str, Entry | str] = {kind: found}
    node = found.obj["spec"].get("nodeName") if kind == "Pod" else ""
    if node:
        out["Node"] = core.store.bucket(BOUND["Node"]).get("", node) or node
    return out


async def token(core: Core, namespace: str, name: str, body: Obj, options: Options) -> Obj:
    """POST serviceaccounts/x/token: a bearer token that this server accepts until it expires, or what it is bound to is gone."""
    clean(schemas().type(_TYPES["token"]), body, None, [])
    resource = core.resources.builtin("", "serviceaccounts")
    attributes = await _mutated(core, resource, namespace, name, "token", body, options)
    await core.admission.validate(attributes)
    wanted = attributes.require_object()
    for key, own in (("name", name), ("namespace", namespace)):
        given = (wanted.get("metadata") or {}).get(key)
        if given and given != own:
            cause = invalid_value(f"metadata.{key}", given, f"must match the service account {key} if specified")
            raise invalid("TokenRequest", "authentication.k8s.io", name, [cause])
    account = core.entry(resource, namespace, name)
    spec = dict(wanted.get("spec") or {})
    seconds = spec.setdefault("expirationSeconds", _USUAL_SECONDS)
    audiences = spec["audiences"] = list(spec.get("audiences") or (ISSUER,))
    if not _LEAST_SECONDS <= seconds <= _MOST_SECONDS:
        less = "less than 10 minutes" if seconds < _LEAST_SECONDS else "larger than 2^32 seconds"
        cause = invalid_value("spec.expirationSeconds", seconds, f"may not specify a duration {less}")
        raise invalid("TokenRequest", "authentication.k8s.io", "", [cause])
    bound = _bound_to(core, account, spec["boundObjectRef"]) if spec.get("boundObjectRef") else {}
    expires = int(seams.now()) + seconds
    return {
        "kind": "TokenRequest",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": {"name": name, "namespace": namespace, "creationTimestamp": now()},
        "spec": spec,
        "status": {"token": core.tokens.issue(account, audiences, seconds, bound), "expirationTimestamp": format_time(expires)},
    }


# -- reviews -------------------------------------------------------------------------------------------------------------------------

_EVERYTHING = {
    "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
    "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    "incomplete": False,
}


async def review(core: Core, resource: Resource, namespace: str, obj: Obj, options: Options) -> Obj:
    """The answer to a question about tokens or access: the object with its status filled in. Nothing is stored."""
    context.check_identity(resource, obj, namespace, "")
    decode(resource, obj, options)
    _check_review(resource, namespace, obj.get("spec") or {})
    if resource.kind == "Binding":
        return await bind(core, namespace, obj["metadata"].get("name") or "", obj, options)
    head = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": {"creationTimestamp": None}}
    out: Obj = {**head, "spec": obj.get("spec") or {}}
    if resource.kind == "TokenReview":
        try:
            found = core.tokens.review(out["spec"]["token"], out["spec"].get("audiences") or [])
            out["status"] = {"authenticated": True, "user": found.user.wire(), "audiences": found.audiences}
        except TokenError as error:
            out["status"] = {"error": str(error)}
    elif resource.kind == "SelfSubjectReview":
        del out["spec"]
        out["metadata"]["creationTimestamp"] = now()
        out["status"] = {"userInfo": options.user.wire()}
    elif resource.kind == "SelfSubjectRulesReview":
        out["status"] = _rules(core, options.user, out["spec"].get("namespace") or "")
    else:
        out["status"] = _access(core, resource.kind, out["spec"], namespace, options)
    return out


def _check_review(resource: Resource, namespace: str, spec: Obj) -> None:
    """Raise 400 or 422 for a question that cannot be answered."""
    if resource.kind == "TokenReview" and not spec.get("token"):
        raise bad_request("token is required for TokenReview in authentication")
    if resource.kind == "SelfSubjectRulesReview" and not spec.get("namespace"):
        raise bad_request("no namespace on request")
    if not resource.kind.endswith("AccessReview"):
        return
    wanted, path, causes = spec.get("resourceAttributes"), spec.get("nonResourceAttributes"), []
    if wanted is not None and path is not None:
        text = "cannot be specified in combination with resourceAttributes"
        causes.append(invalid_value("spec.nonResourceAttributes", path, text))
    elif wanted is None and path is None:
        text = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        causes.append(invalid_value("spec.resourceAttributes", None, text))
    if resource.kind != "SelfSubjectAccessReview" and not (spec.get("user") or spec.get("groups")):
        causes.append(invalid_value("spec.user", "", "at least one of user or group must be specified"))
    if resource.kind == "LocalSubjectAccessReview" and wanted is not None and wanted.get("namespace") != namespace:
        causes.append(invalid_value("spec.resourceAttributes.namespace", wanted.get("namespace") or "", "must match metadata.namespace"))
    if causes:
        raise invalid(resource.kind, resource.group, "", causes)


def _rules(core: Core, user: User, namespace: str) -> Obj:
    if core.authorizer is None or MASTERS in user.groups:
        return _EVERYTHING
    found = core.authorizer.rules(user, namespace)
    return {
        "resourceRules": [rule for rule in found if rule.get("resources")],
        "nonResourceRules": [rule for rule in found if rule.get("nonResourceURLs")],
        "incomplete": False,
    }


def _access(core: Core, kind: str, spec: Obj, namespace: str, options: Options) -> Obj:
    """The status of an access review: about the asker, or about whom the spec names."""
    if core.authorizer is None:
        return {"allowed": True, "reason": "the embedded API server allows everything"}
    user = options.user
    if kind != "SelfSubjectAccessReview":
        user = User(spec.get("user") or "", tuple(spec.get("groups") or ()), spec.get("uid") or "")
    wanted = of_review(spec)
    if kind == "LocalSubjectAccessReview":
        wanted = wanted._replace(namespace=namespace)
    if MASTERS in user.groups:
        return {"allowed": True}
    allowance = core.authorizer.find(user, wanted)
    if allowance is None:  # what is everybody's has no rule that could be named
        return {"allowed": core.authorizer.would_allow(user, wanted)}
    return {"allowed": True, "reason": allowance.text()}
