"""/validate-pod: the rules for QoS, priority and resources of pods (MGR-POD-V-01, MGR-POD-V-02, MGR-POD-V-04)."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterator, Mapping

import msgspec
from msgspec import structs

from koord import seams
from koord.accounting.pods import spec_requests
from koord.accounting.resources import ResourceVector
from koord.api import names, trust
from koord.api.objects import Pod, convert
from koord.api.priority import PriorityClass, PriorityError, pod_priority_class_raw, sub_priority
from koord.api.qos import QoSClass, pod_qos_raw
from koord.api.quantity import QuantityError, parse_value
from roles.manager.noderesource.inputs import unix_time
from roles.manager.webhooks import enhanced
from roles.manager.webhooks.quota_topology import resolve
from roles.manager.webhooks.review import Refusal, Request
from roles.manager.webhooks.translate import extended_resource_spec
from roles.manager.webhooks.view import View

Rule = Callable[[Pod, Pod | None, Request, View], Awaitable[None]]

MANAGER_ACCOUNT = "koord-manager"
RESIZE = "resize"
_REFUSED_CLASSES = {
    QoSClass.BE: (PriorityClass.NONE, PriorityClass.PROD),
    QoSClass.LSR: (PriorityClass.NONE, PriorityClass.MID, PriorityClass.BATCH, PriorityClass.FREE),
}


async def forbidden_annotation(pod: Pod, old: Pod | None, request: Request, view: View) -> None:
    """The scheduler's own marks of a reserve pod may not be set by anybody, whatever their value."""
    for key in trust.FORBIDDEN:
        if key in pod.metadata.annotations:
            raise Refusal(f'metadata.annotations["{key}"]: is reserved for the scheduler and may not be set')


async def trusted_annotations(pod: Pod, old: Pod | None, request: Request, view: View) -> None:
    """Allocations are written by the scheduler, batch resources say what the spec says, and owners keep to the bounds (BEY-SEC-03)."""
    after, before = pod.metadata.annotations, old.metadata.annotations if old is not None else {}
    touched = trust.changed(trust.RESERVED, after, before)
    if touched and not trust.is_writer(request.username, request.groups, view.allocation_writers):
        keys = ", ".join(f'metadata.annotations["{key}"]' for key in touched)
        raise Refusal(f"{keys}: written by the scheduler only, and user {request.username!r} is none of --allocation-writers", 403)
    failures: list[str] = []
    for key in trust.changed(trust.OWNED, after, before):
        problems = list(trust.out_of_bounds(key, after))
        # what cannot be read counts as absent, on the node too
        (failures if trust.readable(key, after) else request.warnings).extend(problems)
    if failures:
        raise Refusal("; ".join(failures))
    _extended_spec(pod, before, request, view)


def _extended_spec(pod: Pod, before: Mapping[str, str], request: Request, view: View) -> None:
    key = names.ANNOTATION_EXTENDED_RESOURCE_SPEC
    present = pod.metadata.annotations.get(key)
    if not present or present == before.get(key) or view.gates.enabled("DisableExtendedResourceSpec"):
        return
    if extended_resource_spec((request.object or {}).get("spec") or {}, present) is not None:
        raise Refusal(f'metadata.annotations["{key}"]: says something else than the batch resources of spec.containers')


async def colocation_rules(pod: Pod, old: Pod | None, request: Request, view: View) -> None:
    """QoS, priority and resources; all failures are told together."""
    failures = list(_immutable(pod, old, view)) if old is not None and not _by_profile(old, request, view) else []
    failures += _combination(pod)
    failures += _resources(pod)
    if failures:
        raise Refusal("; ".join(failures))
    request.warnings.extend(_traps(pod))


def _traps(pod: Pod) -> Iterator[str]:
    """What is legal and hardly meant."""
    key, text = names.LABEL_POD_PRIORITY, pod.metadata.labels.get(names.LABEL_POD_PRIORITY, "")
    try:
        value = sub_priority(pod.metadata.labels)
    except PriorityError as error:
        yield f"{error}; it counts as 0"
        return
    if text.lstrip("+-").startswith("0") and value:
        yield f'metadata.labels["{key}"]: {text} is read as {value}: a leading 0 means another base than ten'


def _by_profile(old: Pod, request: Request, view: View) -> bool:
    """Whether this is the profile controller (MGR-CP-01), which may give a class to a pod that waits for its node."""
    account = f"system:serviceaccount:{view.options.webhook.namespace}:{MANAGER_ACCOUNT}"
    return not old.spec.node_name and request.username == account and view.gates.enabled("ColocationProfileController")


def _immutable(pod: Pod, old: Pod, view: View) -> Iterator[str]:
    before, after = pod_qos_raw(old), pod_qos_raw(pod)
    if before != after:
        yield f'metadata.labels["{names.LABEL_POD_QOS}"]: is immutable, {str(before)!r} cannot become {str(after)!r}'
    was, now = pod_priority_class_raw(old), pod_priority_class_raw(pod)
    if was != now:
        key = names.LABEL_POD_PRIORITY_CLASS
        yield f'metadata.labels["{key}"] or spec.priority: the class is immutable, {str(was)!r} cannot become {str(now)!r}'
    if view.gates.enabled("ColocationProfileSkipValidatingPriority"):
        return
    key = names.LABEL_POD_PRIORITY
    first, then = (one.metadata.labels.get(key, "") for one in (old, pod))
    if first != then:
        yield f'metadata.labels["{key}"]: is immutable, {first!r} cannot become {then!r}'


def _combination(pod: Pod) -> Iterator[str]:
    qos, priority = pod_qos_raw(pod), pod_priority_class_raw(pod)
    if priority in _REFUSED_CLASSES.get(qos, ()):
        accepted = "koord-mid, koord-batch or koord-free" if qos is QoSClass.BE else "koord-prod"
        yield (
            f'metadata.labels["{names.LABEL_POD_QOS}"]: {qos} cannot be combined with priority class '
            f"{str(priority) or 'none'!r} ({names.LABEL_POD_PRIORITY_CLASS} or spec.priority); accepted: {accepted}"
        )


def _resources(pod: Pod) -> Iterator[str]:
    wanted, qos = spec_requests(pod.spec), pod_qos_raw(pod)
    batch = [name for name in names.BATCH_RESOURCES if wanted.get(name)]
    if batch and qos is not QoSClass.BE:
        yield f'metadata.labels["{names.LABEL_POD_QOS}"]: must be BE for a pod that requests {", ".join(batch)}, got {str(qos)!r}'
    if qos in (QoSClass.LSR, QoSClass.LSE):
        cpu = wanted.get(names.RESOURCE_CPU, 0)
        if cpu == 0:
            yield f"spec.containers[*].resources.requests.cpu: {qos} pods must request cpu, got none (rule of LSR: whole cores)"
        elif cpu % 1000:
            yield f"spec.containers[*].resources.requests.cpu: {qos} pods must request whole cores, got {cpu}m (rule of LSR: whole cores)"


async def quota_binding(pod: Pod, old: Pod | None, request: Request, view: View) -> None:
    """A pod may not use a parent quota, and may not change whether it is preemptible."""
    key = names.LABEL_PREEMPTIBLE
    if old is not None and old.metadata.labels.get(key, "") != pod.metadata.labels.get(key, ""):
        raise Refusal(f'metadata.labels["{key}"]: is immutable')
    if view.gates.enabled("SupportParentQuotaSubmitPod"):
        return
    name = resolve(pod.metadata.labels, pod.metadata.namespace or request.namespace, view.quotas, view.gates.enabled("DisableDefaultQuota"))
    quota = view.quotas.get(name) if name else None
    if quota is not None and quota.is_parent and name != names.QUOTA_DEFAULT:
        raise Refusal(
            f"pod {request.namespace}/{request.name or pod.metadata.name}: quota {name} is a parent quota; pods must use one of its leaves"
        )


async def device_resources(pod: Pod, old: Pod | None, request: Request, view: View) -> None:
    """GPU requests that the device scheduler can serve (gate ValidatePodDeviceResource)."""
    if not view.gates.enabled("ValidatePodDeviceResource"):
        return
    for index, container in enumerate(pod.spec.containers):
        where = f"spec.containers[{index}].resources.requests"
        wanted = {name: parse_value(q) for name, q in container.resources.requests.items()}
        for failure in _gpu(wanted):
            raise Refusal(f"{where}: {failure}")


async def quota_admission(pod: Pod, old: Pod | None, request: Request, view: View) -> None:
    """Room in the pod's quota (gate EnableQuotaAdmission)."""
    gates = view.gates
    if not gates.enabled("EnableQuotaAdmission") or pod.is_terminal or _past_grace(pod):
        return
    namespace, label_only = pod.metadata.namespace or request.namespace, gates.enabled("DisableDefaultQuota")
    name = resolve(pod.metadata.labels, namespace, view.quotas, label_only)
    if old is not None:
        before = resolve(old.metadata.labels, namespace, view.quotas, label_only)
        if not gates.enabled("EnableQuotaAdmissionOnUpdate") or before == name:
            return
    if not name or name in names.RESERVED_QUOTAS:
        return
    found = view.quotas_named(name)
    if len(found) != 1:
        raise Refusal(
            f"quota {name}: {'not found' if not found else 'exists in more than one namespace: ' + ', '.join(q.key for q in found)}"
        )
    spec = structs.replace(pod.spec, overhead={}) if gates.enabled("ElasticQuotaIgnorePodOverhead") else pod.spec
    wanted = spec_requests(spec)
    if gates.enabled("ElasticQuotaEvaluationTransformPod") and gates.enabled("ReplaceResourcesTransformer"):
        wanted = replace_resources(wanted, pod.metadata.annotations.get(names.ANNOTATION_REPLACE_RESOURCES, ""))
    await view.admission.admit(found[0], wanted, dry_run=request.dry_run)


def _past_grace(pod: Pod) -> bool:
    deleted = unix_time(pod.metadata.deletion_timestamp)
    return deleted is not None and seams.now() > deleted + (pod.metadata.deletion_grace_period_seconds or 0)


def replace_resources(wanted: ResourceVector, text: str) -> ResourceVector:
    """Apply annotation replace-resources ("a:b,c:"): erase names, then rename where the target is absent (cpu becomes its milli value)."""
    pairs = [part.split(":") for part in text.split(",") if part.count(":") == 1]
    result = {name: amount for name, amount in wanted.items() if [name, ""] not in pairs}
    for source, target in pairs:
        if target and source in result and target not in result:
            result[target] = result.pop(source)
    return result


async def enhanced_rules(pod: Pod, old: Pod | None, request: Request, view: View) -> None:
    """Required labels (gate EnablePodEnhancedValidator)."""
    if not view.gates.enabled("EnablePodEnhancedValidator"):
        return
    if pod.metadata.labels.get(names.LABEL_POD_SKIP_ENHANCED_VALIDATION) == "true":
        return
    rules = await view.enhanced.current(seams.monotonic())
    why = enhanced.failure(rules, pod.metadata.labels, pod.metadata.namespace or request.namespace)
    if why:
        raise Refusal(f"pod {request.namespace}/{request.name or pod.metadata.name}: {why}")


def _gpu(wanted: dict[str, int]) -> Iterator[str]:
    gpu, shared = wanted.get(names.RESOURCE_GPU), wanted.get(names.RESOURCE_GPU_SHARED)
    if gpu is not None and shared is not None:
        yield f"{names.RESOURCE_GPU} and {names.RESOURCE_GPU_SHARED} cannot be requested together"
    if gpu is not None and (gpu == 0 or (gpu > 100 and gpu % 100)):
        yield f"{names.RESOURCE_GPU} must be 1 to 100 or a multiple of 100, got {gpu}"
    if shared is None:
        return
    if shared == 0:
        yield f"{names.RESOURCE_GPU_SHARED} must not be 0"
    if wanted.get(names.RESOURCE_HUAWEI_NPU_CORE):
        return
    memory, ratio = wanted.get(names.RESOURCE_GPU_MEMORY, 0), wanted.get(names.RESOURCE_GPU_MEMORY_RATIO, 0)
    if bool(memory) == bool(ratio):
        yield f"exactly one of {names.RESOURCE_GPU_MEMORY} and {names.RESOURCE_GPU_MEMORY_RATIO} is needed with {names.RESOURCE_GPU_SHARED}"
    for name in (names.RESOURCE_GPU_CORE, names.RESOURCE_GPU_MEMORY_RATIO):
        if shared and wanted.get(name, 0) % shared:
            yield f"{name} must be a multiple of {names.RESOURCE_GPU_SHARED} ({shared}), got {wanted[name]}"


# In order; the first rule that refuses answers. The name is the metric's plugin_name.
RULES: tuple[tuple[str, Rule], ...] = (
    ("ForbiddenAnnotation", forbidden_annotation),
    ("TrustedAnnotations", trusted_annotations),
    ("ClusterColocationProfile", colocation_rules),
    ("ElasticQuota", quota_binding),
    ("QuotaEvaluator", quota_admission),
    ("DeviceResource", device_resources),
    ("EnhancedValidator", enhanced_rules),
)


def read(request: Request) -> tuple[Pod, Pod | None]:
    """The pod and its former state. Raises Refusal naming what cannot be read."""
    try:
        pod = convert(request.object or {}, Pod)
        old = convert(request.old_object, Pod) if request.operation == "UPDATE" and request.old_object else None
    except msgspec.ValidationError as error:
        raise Refusal(f"the pod cannot be read: {error}") from None
    return pod, old


async def run_rule(rule: Rule, pod: Pod, old: Pod | None, request: Request, view: View) -> None:
    """One rule; malformed quantities become a Refusal. Of a pod that has finished or is being deleted, and of one that is resized, only
    what an update changes can be refused: who takes its finalizers away is not to blame for what it has been all the time."""
    why = await _refusal(rule, pod, old, request, view)
    if why is None:
        return
    ended = old is not None and (old.is_terminal or old.is_deleting)
    if old is not None and (ended or request.sub_resource == RESIZE):
        before = await _refusal(rule, old, old, dataclasses.replace(request, object=request.old_object, warnings=[]), view)
        if before is not None and before.message == why.message:
            request.warnings.append(f"{why.message}; admitted, for the pod {'has ended and ' if ended else ''}was so before")
            return
    raise why


async def _refusal(rule: Rule, pod: Pod, old: Pod | None, request: Request, view: View) -> Refusal | None:
    try:
        await rule(pod, old, request, view)
    except Refusal as refusal:
        return refusal
    except QuantityError as error:
        return Refusal(f"the pod cannot be read: {error}")
    return None
