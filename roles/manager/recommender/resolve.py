"""Which pods a Recommendation is about: its own selector, or that of the workload it names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import orjson

from koord.api.objects import LabelSelector, Pod, Recommendation
from koord.api.selectors import Selector, SelectorError, from_label_selector, parse_label_selector
from koord.api.sharing import SharedPod
from koord.kube.client import Client
from koord.kube.errors import ApiError
from roles.manager.recommender.apply import LABEL_CRON_JOB

_VERSION = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[a-z][-a-z0-9]*", re.ASCII)
_DEFAULT_VERSION = {"Job": "batch/v1", "CronJob": "batch/v1", "ReplicationController": "v1"}
WORKLOADS = {
    ("apps/v1", "Deployment"): "deployments",
    ("apps/v1", "StatefulSet"): "statefulsets",
    ("apps/v1", "DaemonSet"): "daemonsets",
    ("apps/v1", "ReplicaSet"): "replicasets",
    ("batch/v1", "Job"): "jobs",
    ("batch/v1", "CronJob"): "cronjobs",
    ("v1", "ReplicationController"): "replicationcontrollers",
}
"""Workloads whose selector stands in their spec, with their plurals; any other kind is asked for its scale."""


class Unsupported(Exception):
    """The target cannot be followed; the text says why and what is accepted."""


class Missing(Exception):
    """The workload is not there."""


@dataclass(frozen=True, slots=True)
class Target:
    """Selectors of which one must match; pods are those of the Recommendation's namespace."""

    selectors: tuple[Selector, ...]

    def matches(self, pod: Pod) -> bool:
        """Whether a pod of the namespace belongs to the target."""
        labels = pod.labels if isinstance(pod, SharedPod) else pod.metadata.labels  # whose other metadata would be put together each time
        return any(selector.matches(labels) for selector in self.selectors)


async def resolve(client: Client, recommendation: Recommendation) -> Target:
    """The target of a Recommendation. Raises Unsupported, Missing or ApiError."""
    wanted = recommendation.spec.target
    if wanted.type == "podSelector":
        return Target((_selector(wanted.pod_selector or LabelSelector(), "spec.target.podSelector"),))
    if wanted.type != "workload":
        raise Unsupported(f"spec.target.type {wanted.type!r} is not known; accepted: workload, podSelector")
    workload = wanted.workload
    if workload is None or not workload.kind or not workload.name:
        raise Unsupported("spec.target.workload needs a kind and a name")
    version = workload.api_version or _DEFAULT_VERSION.get(workload.kind, "apps/v1")
    if not _VERSION.fullmatch(version):
        raise Unsupported(f"spec.target.workload.apiVersion {version[:100]!r} is none; accepted: v1, or GROUP/VERSION like apps/v1")
    namespace = recommendation.metadata.namespace
    plural = WORKLOADS.get((version, workload.kind))
    if plural is None:
        return await _of_scale(client, version, workload.kind, namespace, workload.name)
    found = await _get(client, f"{_path(version, namespace, plural)}/{quote(workload.name)}", workload.kind, workload.name)
    if workload.kind == "CronJob":
        return await _of_cron_job(client, namespace, found)
    spec = found.get("spec") or {}
    if workload.kind == "ReplicationController":
        return Target((_selector({"matchLabels": spec.get("selector") or {}}, "its spec.selector"),))
    return Target((_spec_selector(spec),))


def _path(version: str, namespace: str, plural: str) -> str:
    return f"/{'api' if version == 'v1' else 'apis'}/{version}/namespaces/{quote(namespace)}/{plural}"


def _selector(labels: LabelSelector | dict[str, Any], where: str) -> Selector:
    try:
        return from_label_selector(labels, nil_matches=True)
    except SelectorError as error:
        raise Unsupported(f"{where}: {error}") from None


def _spec_selector(spec: dict[str, Any]) -> Selector:
    if not spec.get("selector"):
        raise Unsupported("the workload has no spec.selector")
    return _selector(spec["selector"], "its spec.selector")


async def _get(client: Client, path: str, kind: str, name: str) -> dict[str, Any]:
    status, body = await client.raw("GET", path)
    if status == 404:
        raise Missing(f"there is no {kind} {name}")
    try:
        found = orjson.loads(body) if body else {}
    except orjson.JSONDecodeError:
        raise ApiError(status, "BadAnswer", f"GET {path}: the answer is not JSON") from None
    if status == 403:
        raise Unsupported(f"the manager may not read it: {found.get('message', path)}; grant it, or use type podSelector")
    if status >= 300:
        raise ApiError(status, str(found.get("reason", "")), f"GET {path}: {found.get('message', '')}")
    assert isinstance(found, dict)
    return found


async def _of_cron_job(client: Client, namespace: str, cron_job: dict[str, Any]) -> Target:
    uid = cron_job["metadata"]["uid"]
    jobs = await _get(client, _path("batch/v1", namespace, "jobs"), "Jobs", "")
    owned = [
        job for job in jobs.get("items") or [] if any(owner.get("uid") == uid for owner in job["metadata"].get("ownerReferences") or [])
    ]
    known = (_spec_selector(job.get("spec") or {}) for job in owned if (job.get("spec") or {}).get("selector"))
    return Target((*known, from_label_selector({"matchLabels": {LABEL_CRON_JOB: cron_job["metadata"]["name"]}})))


async def _of_scale(client: Client, version: str, kind: str, namespace: str, name: str) -> Target:
    """Any kind with a scale sub-resource, custom ones too: its status names the selector."""
    root = f"/{'api' if version == 'v1' else 'apis'}/{version}"
    try:
        listed = await _get(client, root, "API group", version)
    except Missing:
        raise Unsupported(f"the API server serves no {version}") from None
    served = {entry["name"]: entry for entry in listed.get("resources") or []}
    plural = next((n for n, entry in served.items() if entry.get("kind") == kind and "/" not in n), None)
    if plural is None:
        raise Unsupported(f"{version} has no kind {kind}")
    if f"{plural}/scale" not in served:
        raise Unsupported(f"{kind} has no scale sub-resource, so its pods are not known; use type podSelector")
    scale = await _get(client, f"{_path(version, namespace, plural)}/{quote(name)}/scale", kind, name)
    text = (scale.get("status") or {}).get("selector") or ""
    if not text:
        raise Unsupported(f"the scale of {kind} {name} names no selector; use type podSelector")
    try:
        return Target((parse_label_selector(text),))
    except SelectorError as error:
        raise Unsupported(f"the scale of {kind} {name}: {error}") from None
