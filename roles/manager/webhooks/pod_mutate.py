"""/mutate-pod: the chain of pod mutations on CREATE."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from koord.accounting.pods import spec_requests
from koord.api import names
from koord.api.objects import Pod, convert
from koord.api.priority import PriorityClass, pod_priority_class
from koord.api.quantity import QuantityError
from koord.kube.patch import copy_json
from roles.manager.recommender import apply
from roles.manager.webhooks import gpu_resources, profiles, quota_affinity
from roles.manager.webhooks.profiles import Profile
from roles.manager.webhooks.review import Refusal, Request
from roles.manager.webhooks.translate import extended_resource_spec, translate
from roles.manager.webhooks.view import View

_NATIVE = {names.RESOURCE_CPU, names.RESOURCE_MEMORY}

Step = Callable[[dict[str, Any], Request, View], Awaitable[dict[str, Any]]]


async def colocation_profile(pod: dict[str, Any], request: Request, view: View) -> dict[str, Any]:
    """Apply every matching profile by name, then translate resources. No match: nothing happens at all."""
    matches = await _selecting(pod.setdefault("metadata", {}), request, view)
    if not matches:
        return pod
    translates = not any(profile.skips_resources for profile in matches)
    metadata = pod["metadata"]
    namespace = metadata.get("namespace") or request.namespace
    for profile in matches:
        if profiles.chosen(profile, profiles.draw_of(profile, metadata, namespace, view.draw)):
            pod = await _apply(pod, profile, view)
            request.notes.append(f"profile {profile.name} applied")
        else:
            request.notes.append(f"profile {profile.name} matched, skipped by its probability {profile.spec.probability}")
    if not translates:
        request.notes.append("resources not translated: a profile carries skip-update-resources")
    elif not view.gates.enabled("ColocationProfileSkipMutatingResources"):
        projection = convert(pod, Pod)
        priority = pod_priority_class(projection)
        translate(pod.get("spec") or {}, priority)
        if priority is PriorityClass.FREE and _NATIVE & spec_requests(projection.spec).keys():
            request.warnings.append(
                "priority class koord-free has no resources of its own: the pod keeps requesting cpu and memory of Prod"
            )
        request.notes.append(f"resources translated for class {str(priority) or 'none'}")
    return pod


async def _selecting(metadata: dict[str, Any], request: Request, view: View) -> list[Profile]:
    """The profiles that select a pod and its namespace, by name."""
    matches = profiles.selecting(view.profiles.values(), metadata.get("labels") or {})
    if any(profile.needs_namespace for profile in matches):
        matches = profiles.in_namespace(matches, await view.namespace_labels(metadata.get("namespace") or request.namespace))
    return matches


async def _apply(pod: dict[str, Any], profile: Profile, view: View) -> dict[str, Any]:
    metadata, pod_spec = pod.setdefault("metadata", {}), pod.setdefault("spec", {})
    profiles.apply_metadata(profile.spec, metadata)
    await set_scheduling(profile, pod_spec, view)
    profiles.set_classes(profile.spec, metadata)
    return profiles.apply_patch(profile, pod, "Pod")


async def set_scheduling(profile: Profile, spec: dict[str, Any], view: View) -> None:
    """The profile's scheduler on a pod spec, and name, value and preemption policy of its PriorityClass. Raises Refusal when there is no
    such class."""
    if profile.spec.scheduler_name:
        spec["schedulerName"] = profile.spec.scheduler_name
    name = profile.spec.priority_class_name
    if not name:
        return
    priority = await view.priority_class(name)
    if priority is None:
        raise Refusal(f"ClusterColocationProfile {profile.name}: PriorityClass {name!r} does not exist")
    spec["priorityClassName"], spec["priority"] = priority.metadata.name, priority.value
    if priority.preemption_policy is None:
        spec.pop("preemptionPolicy", None)
    else:
        spec["preemptionPolicy"] = priority.preemption_policy


async def extended_spec(pod: dict[str, Any], request: Request, view: View) -> dict[str, Any]:
    """Write down batch resources for the node agent."""
    if view.gates.enabled("DisableExtendedResourceSpec"):
        return pod
    metadata = pod.setdefault("metadata", {})
    key = names.ANNOTATION_EXTENDED_RESOURCE_SPEC
    text = extended_resource_spec(pod.get("spec") or {}, (metadata.get("annotations") or {}).get(key))
    if text is not None:
        metadata["annotations"] = {**(metadata.get("annotations") or {}), key: text}
    return pod


async def quota_tree_affinity(pod: dict[str, Any], request: Request, view: View) -> dict[str, Any]:
    """Keep pods of a quota tree on that tree's nodes."""
    if view.gates.enabled("MultiQuotaTree"):
        namespace = (pod.get("metadata") or {}).get("namespace") or request.namespace
        quota_affinity.apply(pod, namespace, view.quotas, view.quota_profiles.list() if view.quota_profiles else ())
    return pod


async def device_resources(pod: dict[str, Any], request: Request, view: View) -> dict[str, Any]:
    """One way to write GPU requests."""
    if not view.gates.enabled("DisableDeviceResourceSpec"):
        gpu_resources.normalize(pod.get("spec") or {})
    return pod


async def recommendation(pod: dict[str, Any], request: Request, view: View) -> dict[str, Any]:
    """Requests that were learnt, for pods whose owner asked for them (14)."""
    if view.following is None:
        return pod
    metadata = pod.get("metadata") or {}
    found = view.following.fitting(metadata.get("namespace") or request.namespace, metadata.get("labels") or {})
    if found is not None:
        exclusive = any(profile.spec.qos_class in apply.EXCLUSIVE for profile in await _selecting(metadata, request, view))
        estimates = apply.mode_of(found) is apply.Mode.ESTIMATE_ON_CREATE
        done: dict[str, Any] = {**(apply.estimate(pod, found) if estimates else apply.apply(pod, found, exclusive=exclusive))}
        if done:
            told = ", ".join(f"{where}={value}" for where, value in done.items())
            request.notes.append(f"recommendation {found.metadata.name} {'estimates, in percent' if estimates else 'applied'}: {told}")
    return pod


# In the order that they run; the name is the metric's plugin_name.
STEPS: tuple[tuple[str, Step], ...] = (
    ("Recommendation", recommendation),  # first: profiles translate what is requested
    ("ClusterColocationProfile", colocation_profile),
    ("ExtendedResourceSpec", extended_spec),
    ("MultiQuotaTree", quota_tree_affinity),
    ("DeviceResourceSpec", device_resources),
)


_OWN = ("overhead", "affinity")


def working_copy(pod: dict[str, Any]) -> dict[str, Any]:
    """A copy of what the steps may change in place; everything else is shared, which keeps the comparison afterwards quick."""
    made = {**pod, "metadata": {**(pod.get("metadata") or {})}}
    spec = made["spec"] = {**(pod.get("spec") or {})}
    for field in ("initContainers", "containers"):
        if isinstance(spec.get(field), list):
            spec[field] = [_container(item) for item in spec[field]]
    for field in _OWN:
        if field in spec:
            spec[field] = copy_json(spec[field])
    return made


def _container(container: Any) -> Any:
    if not isinstance(container, dict) or "resources" not in container:
        return {**container} if isinstance(container, dict) else container
    return {**container, "resources": copy_json(container["resources"])}


async def run_step(step: Step, pod: dict[str, Any], request: Request, view: View) -> dict[str, Any]:
    """One step; malformed pods become a Refusal with the place that is wrong."""
    try:
        return await step(pod, request, view)
    except (msgspec.ValidationError, QuantityError) as error:
        raise Refusal(f"the pod cannot be read: {error}", 400) from None
