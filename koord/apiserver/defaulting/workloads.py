"""Defaults of workload kinds."""

from __future__ import annotations

from typing import Any

from koord.apiserver.defaulting.pods import default_pod_spec

Obj = dict[str, Any]


def _template(owner: Obj) -> Obj:
    spec: Obj = owner.setdefault("spec", {})
    template = spec.get("template")
    if template is not None:
        template.setdefault("metadata", {})
        if template.get("spec") is not None:
            default_pod_spec(template["spec"])
    return spec


def default_deployment(obj: Obj) -> None:
    spec = _template(obj)
    spec.setdefault("replicas", 1)
    strategy = spec.setdefault("strategy", {})
    strategy.setdefault("type", "RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", "25%")
        rolling.setdefault("maxSurge", "25%")
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)


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
    spec = _template(obj)
    spec.setdefault("replicas", 1)
    spec.setdefault("podManagementPolicy", "OrderedReady")
    strategy = spec.setdefault("updateStrategy", {})
    strategy.setdefault("type", "RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        strategy.setdefault("rollingUpdate", {}).setdefault("partition", 0)
    spec.setdefault("revisionHistoryLimit", 10)
    for claim in spec.get("volumeClaimTemplates") or ():
        claim.setdefault("kind", "PersistentVolumeClaim")
        claim.setdefault("apiVersion", "v1")
        claim.setdefault("spec", {}).setdefault("volumeMode", "Filesystem")
        claim["status"] = {"phase": "Pending"}


def default_daemon_set(obj: Obj) -> None:
    spec = _template(obj)
    strategy = spec.setdefault("updateStrategy", {})
    strategy.setdefault("type", "RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", 1)
        rolling.setdefault("maxSurge", 0)
    spec.setdefault("revisionHistoryLimit", 10)


def create_scaled(obj: Obj) -> None:
    obj["status"] = {"replicas": 0}


def create_daemon_set(obj: Obj) -> None:
    obj["status"] = {"currentNumberScheduled": 0, "numberMisscheduled": 0, "desiredNumberScheduled": 0, "numberReady": 0}


def _job_spec(spec: Obj) -> None:
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    spec.setdefault("backoffLimit", 6)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)


def default_job(obj: Obj) -> None:
    spec = _template(obj)
    _job_spec(spec)


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
    spec = obj.setdefault("spec", {})
    spec.setdefault("concurrencyPolicy", "Allow")
    spec.setdefault("suspend", False)
    spec.setdefault("successfulJobsHistoryLimit", 3)
    spec.setdefault("failedJobsHistoryLimit", 1)
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
