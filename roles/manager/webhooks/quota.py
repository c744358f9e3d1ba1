"""ElasticQuota webhooks: defaults on CREATE, and the rules on CREATE, UPDATE and DELETE (MGR-EQ-M-01, MGR-EQ-V-01)."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any

import msgspec
import orjson

from koord import seams
from koord.accounting.resources import parse
from koord.api import names
from koord.api.annotations import AnnotationError, parse_max_strict_check_resource_keys
from koord.api.objects import ElasticQuota, convert
from koord.api.quantity import Quantity, QuantityError, parse_value
from roles.manager.webhooks import ancestry, quota_rules
from roles.manager.webhooks.quota_topology import Quota, read_quota
from roles.manager.webhooks.review import Refusal, Request
from roles.manager.webhooks.view import View

_PROTECTED = {"UPDATE": (names.QUOTA_ROOT, names.QUOTA_SYSTEM), "DELETE": (names.QUOTA_ROOT, names.QUOTA_SYSTEM, names.QUOTA_DEFAULT)}

# Annotations with rules of their own: they are checked when nothing else of a quota changes, too.
_OWN_RULES = (names.ANNOTATION_QUOTA_SHARED_WEIGHT, names.ANNOTATION_QUOTA_MAX_STRICT_CHECK_RESOURCE_KEYS)


async def mutate(quota: dict[str, Any], request: Request, view: View) -> dict[str, Any]:
    """Fill in parent, tree id and shared weight, in place of a copy. Raises Refusal."""
    metadata = quota.setdefault("metadata", {})
    if request.operation != "CREATE" or metadata.get("name") == names.QUOTA_ROOT:
        return quota
    labels = metadata["labels"] = dict(metadata.get("labels") or {})
    parent = labels.get(names.LABEL_QUOTA_PARENT) or names.QUOTA_ROOT
    labels[names.LABEL_QUOTA_PARENT] = parent
    if not labels.get(names.LABEL_QUOTA_TREE_ID) and parent != names.QUOTA_ROOT:
        known = view.quotas.get(parent)
        if known is None:
            raise Refusal(f"quota {metadata.get('name')}: parent {parent} does not exist")
        if known.tree_id:
            labels[names.LABEL_QUOTA_TREE_ID] = known.tree_id
    weights = parse((quota.get("spec") or {}).get("max")) if _shared_weight(quota, metadata) else {}
    if not request.dry_run:
        view.weights[f"{request.namespace}/{metadata.get('name')}"] = weights
    return quota


def _shared_weight(quota: dict[str, Any], metadata: dict[str, Any]) -> bool:
    """Whether the whole default was filled in."""
    key = names.ANNOTATION_QUOTA_SHARED_WEIGHT
    annotations = dict(metadata.get("annotations") or {})
    ceiling = (quota.get("spec") or {}).get("max") or {}
    text = annotations.get(key)
    if text:
        try:
            weight = orjson.loads(text)
            weight = {} if weight is None else weight
            if not isinstance(weight, dict):
                raise TypeError
            parse(weight)
        except (orjson.JSONDecodeError, QuantityError, AttributeError, TypeError):
            raise Refusal(
                f'quota {metadata.get("name")}: metadata.annotations["{key}"] must be a JSON ResourceList, got {text!r}'
            ) from None
        filled = {name: weight.get(name, amount) for name, amount in ceiling.items()}
        if filled == weight:
            return False
    else:
        filled = dict(ceiling)
    annotations[key] = orjson.dumps(filled, option=orjson.OPT_SORT_KEYS).decode()
    metadata["annotations"] = annotations
    return not text


async def validate(request: Request, view: View) -> None:
    """Raises Refusal with everything that is wrong. An admitted quota is known to this replica at once."""
    try:
        new = convert(request.object, ElasticQuota) if request.object else None
        old = convert(request.old_object, ElasticQuota) if request.old_object else None
        failures = list(_failures(request, new, old, view))
        if failures:
            raise Refusal("; ".join(failures))
        if new is not None and request.operation != "DELETE" and not request.dry_run:
            await _admit(read_quota(new), read_quota(old) if old is not None else None, view)
    except (msgspec.ValidationError, QuantityError) as error:
        raise Refusal(f"the quota cannot be read: {error}") from None


async def _admit(quota: Quota, old: Quota | None, view: View) -> None:
    """Known before its ancestors are asked: another quota that comes meanwhile is judged with this one in its place. Raises Refusal."""
    view.quotas.assume(quota, seams.monotonic())
    if old is None:
        return
    try:
        await ancestry.confirm(quota, old, view)
    except BaseException:  # cancelled, too
        view.quotas.withdraw(quota)
        raise
    view.quotas.assume(quota, seams.monotonic())  # the informer may have shown it as it was


def _failures(request: Request, new: ElasticQuota | None, old: ElasticQuota | None, view: View) -> Iterator[str]:
    name = request.name or (new or old or ElasticQuota()).metadata.name
    if name in _PROTECTED.get(request.operation, ()) and not (request.operation == "UPDATE" and _unchanged(new, old)):
        yield f"quota {name}: is managed by the scheduler, {request.operation.lower()} is refused"
    elif request.operation == "DELETE":
        yield from _delete_errors(name, view)
    elif new is not None and request.operation == "UPDATE" and old is not None and _unchanged(new, old):
        if any(new.metadata.annotations.get(key) != old.metadata.annotations.get(key) for key in _OWN_RULES):
            yield from _object_errors(new, read_quota(new))
    elif new is not None:
        yield from _write_errors(new, read_quota(new), request, view)


def _unchanged(new: ElasticQuota | None, old: ElasticQuota | None) -> bool:
    """Whether nothing that the rules look at has changed: place in the tree, tree id, bound namespaces, spec."""
    if new is None or old is None:
        return False
    labels = (names.LABEL_QUOTA_PARENT, names.LABEL_QUOTA_IS_PARENT, names.LABEL_QUOTA_TREE_ID)
    bound = names.ANNOTATION_QUOTA_NAMESPACES
    return (
        all(new.metadata.labels.get(key, "") == old.metadata.labels.get(key, "") for key in labels)
        and new.metadata.annotations.get(bound, "") == old.metadata.annotations.get(bound, "")
        and (parse(new.spec.min), parse(new.spec.max)) == (parse(old.spec.min), parse(old.spec.max))
    )


def _delete_errors(name: str, view: View) -> Iterator[str]:
    if view.quotas.get(name) is None:
        yield f"quota {name}: is not known"
        return
    children = view.quotas.children(name)
    if children:
        yield f"quota {name}: has {len(children)} children, among them {', '.join(child.name for child in children[:2])}; delete them first"
    pods = list(view.quota_pods.of(name, view.quotas, view.gates.enabled("DisableDefaultQuota")))
    if pods:
        yield f"quota {name}: has {len(pods)} pods, among them {', '.join(heapq.nsmallest(2, pods))}; delete them first"


def _write_errors(obj: ElasticQuota, quota: Quota, request: Request, view: View) -> Iterator[str]:
    known = view.quotas.get(quota.name)
    if request.operation == "CREATE" and known is not None and known.namespace == (obj.metadata.namespace or request.namespace):
        raise Refusal(f"quota {quota.name}: exists already, in namespace {known.namespace}", 409)
    if request.operation == "CREATE" and known is not None:
        yield f"quota {quota.name}: exists already, in namespace {known.namespace}; quota names are unique in the cluster"
        return
    if request.operation == "UPDATE" and known is None:
        yield f"quota {quota.name}: is not known"
        return
    for namespace in quota.namespaces:
        holder = view.quotas.of_namespace(namespace)
        if holder is not None and (holder.name != quota.name or request.operation == "CREATE"):
            yield f"quota {quota.name}: namespace {namespace} is already bound to quota {holder.name}"
    yield from quota_rules.self_errors(quota)
    yield from _object_errors(obj, quota)
    becomes_parent = known is not None and not known.is_parent and quota.is_parent
    has_pods = becomes_parent and known is not None and view.quota_pods.any_of(known)
    subset = view.gates.enabled("ElasticQuotaEnableUpdateResourceKey")
    yield from quota_rules.tree_errors(quota, known, view.quotas, has_pods, subset_of_parent=subset)


def _object_errors(obj: ElasticQuota, quota: Quota) -> Iterator[str]:
    annotations = obj.metadata.annotations
    weight = annotations.get(names.ANNOTATION_QUOTA_SHARED_WEIGHT)
    if weight:
        try:
            negative = [key for key, amount in (orjson.loads(weight) or {}).items() if Quantity(amount) < Quantity(0)]
        except (orjson.JSONDecodeError, QuantityError, AttributeError):
            yield f"quota {quota.name}: annotation {names.ANNOTATION_QUOTA_SHARED_WEIGHT} must be a JSON ResourceList, got {weight!r}"
            negative = []
        for key in negative:
            yield f"quota {quota.name}: shared weight of {key} must not be negative"
    strict = annotations.get(names.ANNOTATION_QUOTA_MAX_STRICT_CHECK_RESOURCE_KEYS)
    if not strict:
        return
    try:
        keys = parse_max_strict_check_resource_keys(annotations) or ()
    except AnnotationError:
        keys = ()
    if not keys and strict.strip() != "[]":
        key = names.ANNOTATION_QUOTA_MAX_STRICT_CHECK_RESOURCE_KEYS
        yield f"quota {quota.name}: annotation {key} must be a JSON list of names, got {strict!r}"
    used = parse(obj.status.used)
    for key in keys:
        if key in used and quota.max.get(key, -1) < used[key]:
            yield f"quota {quota.name}: spec.max[{key}] must be at least what is used ({parse_value(obj.status.used[key])})"
