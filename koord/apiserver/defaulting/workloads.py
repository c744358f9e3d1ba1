"""Defaults of workload kinds."""

from __future__ import annotations

from typing import Any

from koord.apiserver.defaulting.pods import default_pod_spec, fill

Obj = dict[str, Any]


def _template(owner: Obj) -> Obj:
    spec: Obj = owner.setdefault("spec", {})
    template = spec.get("template")
    if template is not None:
        template.setdefault("metadata", {})
        if template.get("spec") is not None:
            default_pod_spec(template["spec"])
    return spec


def _rolling(spec: Obj, key: str, **defaults: Any) -> None:
    """The strategy of updates under `key`, and how far it goes at once."""
    strategy = fill(spec.setdefault(key, {}), type="RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        fill(strategy.setdefault("rollingUpdate", {}), **defaults)


def default_deployment(obj: Obj) -> None:
    spec = fill(_template(obj), replicas=1, revisionHistoryLimit=10, progressDeadlineSeconds=600)
    _rolling(spec, "strategy", maxUnavailable="25%", maxSurge="25%")


def default_replica_set(obj: Obj) -> None:
    _template(obj).setdefault("replicas", 1)


def default_replication_controller(obj: Obj) -> None:
    spec = _template(obj)
    spec.setdefault("replicas", 1)
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels")
    if labels:
        spec.setdefault("selector", dict(labels))
        obj["metadata"].setdefault("labels", dict(labels))


def default_stateful_set(obj: Obj) -> None:
    spec = fill(_template(obj), replicas=1, podManagementPolicy="OrderedReady", revisionHistoryLimit=10)
    _rolling(spec, "updateStrategy", partition=0)
    for claim in spec.get("volumeClaimTemplates") or ():
        fill(claim, kind="PersistentVolumeClaim", apiVersion="v1", spec={})
        fill(claim["spec"], volumeMode="Filesystem")
        claim["status"] = {"phase": "Pending"}


def default_daemon_set(obj: Obj) -> None:
    _rolling(fill(_template(obj), revisionHistoryLimit=10), "updateStrategy", maxUnavailable=1, maxSurge=0)


def create_scaled(obj: Obj) -> None:
    obj["status"] = {"replicas": 0}


def create_daemon_set(obj: Obj) -> None:
    obj["status"] = {"currentNumberScheduled": 0, "numberMisscheduled": 0, "desiredNumberScheduled": 0, "numberReady": 0}


def default_job(obj: Obj) -> None:
    spec = _template(obj)
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    fill(spec, parallelism=1, backoffLimit=6, completionMode="NonIndexed", suspend=False)


def create_job(obj: Obj) -> None:
    """A job without a selector of its own selects its pods by its uid."""
    spec = obj["spec"]
    if spec.get("manualSelector"):
        return
    meta = obj["metadata"]
    uid = meta["uid"]
    template_meta = spec.setdefault("template", {}).setdefault("metadata", {})
    labels = template_meta.setdefault("labels", {})
    for prefix in ("batch.kubernetes.io/", ""):
        labels.setdefault(prefix + "controller-uid", uid)
        labels.setdefault(prefix + "job-name", meta["name"])
    spec.setdefault("selector", {}).setdefault("matchLabels", {})["batch.kubernetes.io/controller-uid"] = uid


def default_cron_job(obj: Obj) -> None:
    spec = fill(
        obj.setdefault("spec", {}), concurrencyPolicy="Allow", suspend=False, successfulJobsHistoryLimit=3, failedJobsHistoryLimit=1
    )
    job = spec.get("jobTemplate")
    if job is not None:
        job.setdefault("metadata", {})
        template = job.setdefault("spec", {}).get("template")
        if template is not None and template.get("spec") is not None:
            template.setdefault("metadata", {})
            default_pod_spec(template["spec"])


def default_hpa(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("minReplicas", 1)
    if not spec.get("metrics"):
        spec["metrics"] = [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}]
