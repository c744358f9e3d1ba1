"""Validation of workload kinds."""

from __future__ import annotations

import re
from typing import Any

from koord.api.selectors import SelectorError, from_label_selector
from koord.apiserver.errors import Cause, invalid_value, required
from koord.apiserver.validation.pods import check_pod_spec

Obj = dict[str, Any]

_CRON = re.compile(r"^(@(yearly|annually|monthly|weekly|daily|midnight|hourly)|@every .+|(\S+\s+){4}\S+)$")


def check_workload(obj: Obj, causes: list[Cause]) -> None:
    """Replicas, selector, template, and that the selector selects the template."""
    spec = obj.get("spec") or {}
    if spec.get("replicas", 0) < 0:
        causes.append(invalid_value("spec.replicas", spec["replicas"], "must be greater than or equal to 0"))
    template = spec.get("template")
    labels = ((template or {}).get("metadata") or {}).get("labels") or {}
    selector = spec.get("selector")
    if not selector:
        causes.append(required("spec.selector"))
    elif obj["kind"] == "ReplicationController":
        if any(labels.get(k) != v for k, v in selector.items()):
            causes.append(invalid_value("spec.template.metadata.labels", labels, "`selector` does not match template `labels`"))
    else:
        try:
            matches = from_label_selector(selector).matches(labels)
        except SelectorError as err:
            causes.append(invalid_value("spec.selector", selector, str(err)))
            matches = True
        if not (selector.get("matchLabels") or selector.get("matchExpressions")):
            causes.append(invalid_value("spec.selector", selector, f"empty selector is invalid for {obj['kind'].lower()}"))
        if not matches:
            causes.append(invalid_value("spec.template.metadata.labels", labels, "`selector` does not match template `labels`"))
    if template is None:
        causes.append(required("spec.template"))
        return
    check_pod_spec(template.get("spec") or {"restartPolicy": "Always", "dnsPolicy": "ClusterFirst"}, "spec.template.spec", causes)
    restart = (template.get("spec") or {}).get("restartPolicy", "Always")
    if restart != "Always":
        causes.append(
            Cause(
                "FieldValueNotSupported", "spec.template.spec.restartPolicy", f'Unsupported value: "{restart}": supported values: "Always"'
            )
        )


def check_selector_immutable(new: Obj, old: Obj, causes: list[Cause]) -> None:
    """The selector of a workload cannot change."""
    if new["spec"].get("selector") != old["spec"].get("selector"):
        causes.append(invalid_value("spec.selector", new["spec"].get("selector"), "field is immutable"))


def check_job(obj: Obj, causes: list[Cause]) -> None:
    """Check a Job."""
    spec = obj.get("spec") or {}
    for key in ("parallelism", "completions", "backoffLimit", "ttlSecondsAfterFinished"):
        if spec.get(key, 0) < 0:
            causes.append(invalid_value(f"spec.{key}", spec[key], "must be greater than or equal to 0"))
    _job_template(spec, "spec", causes)


def _job_template(spec: Obj, path: str, causes: list[Cause]) -> None:
    pod = (spec.get("template") or {}).get("spec")
    if pod is None:
        causes.append(required(f"{path}.template.spec.containers"))
        return
    check_pod_spec(pod, f"{path}.template.spec", causes)
    if pod.get("restartPolicy") == "Always":
        causes.append(
            Cause(
                "FieldValueNotSupported",
                f"{path}.template.spec.restartPolicy",
                'Unsupported value: "Always": supported values: "OnFailure", "Never"',
            )
        )


def check_cron_job(obj: Obj, causes: list[Cause]) -> None:
    """Check a CronJob."""
    spec = obj.get("spec") or {}
    schedule = spec.get("schedule")
    if not schedule:
        causes.append(required("spec.schedule"))
    elif not _CRON.match(schedule):
        causes.append(invalid_value("spec.schedule", schedule, "expected exactly 5 fields"))
    _job_template((spec.get("jobTemplate") or {}).get("spec") or {}, "spec.jobTemplate.spec", causes)


def check_hpa(obj: Obj, causes: list[Cause]) -> None:
    """Check a HorizontalPodAutoscaler."""
    spec = obj.get("spec") or {}
    if spec.get("maxReplicas", 0) < 1:
        causes.append(invalid_value("spec.maxReplicas", spec.get("maxReplicas", 0), "must be greater than 0"))
    elif spec.get("minReplicas", 1) > spec["maxReplicas"]:
        causes.append(invalid_value("spec.maxReplicas", spec["maxReplicas"], "must be greater than or equal to `minReplicas`"))
    target = spec.get("scaleTargetRef") or {}
    for key in ("kind", "name"):
        if not target.get(key):
            causes.append(required(f"spec.scaleTargetRef.{key}"))
