"""Which gang a pod belongs to, and how many of its members must run, as far as the pod itself says (SCH-GANG-01)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from koord.api import names
from koord.api.objects_pod import Pod

# No name of an object has a colon: gangs of these are never those of others.
GROUP = "podgroup:"
WORKLOAD = "workload:"
_NUMBER = re.compile(r"[+-]?[0-9]{1,12}", re.ASCII)


def gang_name(labels: Mapping[str, str], annotations: Mapping[str, str]) -> str:
    """The gang that labels and annotations name, "" for none."""
    return (
        labels.get(names.LABEL_POD_GROUP)
        or labels.get(names.LABEL_POD_GROUP_NAME_DEPRECATED)
        or annotations.get(names.ANNOTATION_GANG_NAME)
        or ""
    )


def group_id(namespace: str, name: str) -> str:
    """The id of the gang of a PodGroup of scheduling.k8s.io."""
    return f"{namespace}/{GROUP}{name}"


def gang_id(pod: Pod) -> str:
    """The id of a pod's gang, "" for a pod without one: `namespace/name` of koord's own, else that of the pod's schedulingGroup or
    workloadRef."""
    meta, spec = pod.metadata, pod.spec
    if name := gang_name(meta.labels, meta.annotations):
        return f"{meta.namespace}/{name}"
    if spec.scheduling_group is not None and spec.scheduling_group.pod_group_name:
        return group_id(meta.namespace, spec.scheduling_group.pod_group_name)
    workload = spec.workload_ref
    if workload is not None and workload.name:
        return f"{meta.namespace}/{WORKLOAD}{workload.name}:{workload.pod_group}:{workload.pod_group_replica_key}"
    return ""


def gang_minimum(labels: Mapping[str, str], annotations: Mapping[str, str]) -> int | None:
    """The minimum that the pod names; None without one, or for one that is no int32."""
    text = labels.get(names.LABEL_POD_GROUP_MIN_AVAILABLE_DEPRECATED) or annotations.get(names.ANNOTATION_GANG_MIN_AVAILABLE)
    if not text or not _NUMBER.fullmatch(text):
        return None
    number = int(text)
    return number if -(2**31) <= number < 2**31 else None
