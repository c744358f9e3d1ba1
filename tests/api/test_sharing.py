"""Pods by the hundred thousand: what is kept of them reads like the pods that they were."""

from __future__ import annotations

import gc
import uuid
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.accounting.pods import pod_requests
from koord.api.objects import Pod, convert
from koord.api.priority import pod_priority_class
from koord.api.qos import pod_qos
from koord.api.sharing import PodSharer, SharedPod
from koord.kube.store import Informer

LABELS = st.dictionaries(
    st.sampled_from(("a", "b", "koordinator.sh/qosClass", "apps.kubernetes.io/pod-index")), st.sampled_from("xyz"), max_size=3
)
UIDS = st.uuids().map(str) | st.text("aB1-", max_size=36) | st.just("12345678-ABCD-12345678901234567890123")


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    requests = {"cpu": draw(st.sampled_from(("1", "2")))}
    container = {"name": "main", "resources": {"requests": requests}}
    held = {"name": "main", "containerID": draw(st.text("c", max_size=3)), "restartCount": draw(st.integers(0, 9))}
    if draw(st.booleans()):
        held["allocatedResources"] = {"cpu": draw(st.sampled_from(("1", "4")))}
    if draw(st.booleans()):
        held["lastState"] = {"terminated": {"reason": "OOMKilled", "finishedAt": "2026-01-01T00:00:00Z", "exitCode": 137}}
    version = draw(st.integers(0, 2**63).map(str) | st.text("0x", max_size=3))
    metadata = {"name": draw(st.text("pq", min_size=1, max_size=3)), "namespace": draw(st.sampled_from(("m", "n"))), "uid": draw(UIDS)}
    body: dict[str, Any] = {
        "metadata": {
            **metadata,
            "labels": draw(LABELS),
            "resourceVersion": version,
            "annotations": {"x": "y", "koordinator.sh/z": draw(st.sampled_from("12"))},
        },
        "spec": {
            "nodeName": draw(st.sampled_from(("", "n1", "n2"))),
            "containers": [container],
            "nodeSelector": draw(LABELS),
            "priority": 9500,
        },
        "status": {
            "phase": draw(st.sampled_from(("Running", "Pending", "Failed"))),
            "reason": draw(st.sampled_from(("", "Evicted"))),
            "containerStatuses": [held],
            "conditions": [
                {"type": draw(st.sampled_from(("Ready", "DisruptionTarget", "PodResizePending"))), "status": "True", "reason": "Infeasible"}
            ],
        },
    }
    return convert(body, Pod)


@given(st.lists(pods(), max_size=20))
def test_property_a_shared_pod_reads_like_the_pod(found: list[Pod]) -> None:
    sharer = PodSharer()
    for pod, kept in zip(found, [sharer(pod) for pod in found], strict=True):
        if not pod.spec.node_name:
            assert kept is pod, "a pod that waits is kept whole"
            continue
        assert isinstance(kept, SharedPod)
        assert (kept.key, kept.is_terminal, kept.is_deleting) == (pod.key, pod.is_terminal, pod.is_deleting)
        for field in ("name", "namespace", "uid", "resource_version", "labels", "owner_references"):
            assert getattr(kept.metadata, field) == getattr(pod.metadata, field)
        assert kept.metadata.annotations == {"koordinator.sh/z": pod.metadata.annotations["koordinator.sh/z"]}
        assert kept.spec == pod.spec
        assert (kept.status.phase, kept.status.reason) == (pod.status.phase, pod.status.reason)
        whole: Any = kept
        assert pod_requests(whole) == pod_requests(pod)
        assert (pod_qos(whole), pod_priority_class(whole)) == (pod_qos(pod), pod_priority_class(pod))
        ended = [s.last_state.terminated for s in pod.status.container_statuses if s.last_state.terminated]
        assert [s.last_state.terminated for s in whole.status.container_statuses if s.last_state.terminated] == ended


def test_replicas_hold_one_template_stateful_ones_too() -> None:
    def pod(number: int, **labels: str) -> Pod:
        volumes = [{"name": f"kube-api-access-{number}"}]
        spec = {"nodeName": f"n{number}", "containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}], "volumes": volumes}
        status = {"phase": "Running", "podIP": f"10.0.0.{number}", "startTime": f"2026-01-01T00:00:0{number}Z"}
        metadata = {"name": f"p{number}", "namespace": "n", "uid": f"u{number}", "labels": {"app": "web", **labels}}
        return convert({"metadata": metadata, "spec": spec, "status": status}, Pod)

    sharer = PodSharer()
    made: list[Any] = [sharer(pod(1)), sharer(pod(2)), sharer(pod(3, **{"statefulset.kubernetes.io/pod-name": "p3"}))]
    assert made[0].template is made[1].template is made[2].template
    assert made[2].metadata.labels == {"app": "web", "statefulset.kubernetes.io/pod-name": "p3"}
    assert [one.spec.node_name for one in made] == ["n1", "n2", "n3"]


def real(i: int) -> dict[str, Any]:
    """A pod as a kubelet reports it: two containers, statuses, conditions, a projected token, addresses."""
    uid, stamp = str(uuid.UUID(int=i * 7919 + (1 << 90))), f"2026-11-{1 + i % 28:02d}T{i % 24:02d}:{i % 60:02d}:00Z"
    number, digest = i % 110, f"{i * 7919:064x}"
    resources = {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}}
    containers = [
        {"name": name, "image": f"registry.example.com/{name}-{number}:v1", "resources": resources} for name in ("main", "sidecar")
    ]
    states = [
        {
            "name": c["name"], "ready": True, "started": True, "image": c["image"], "imageID": f"{c['image']}@sha256:{digest}",
            "containerID": f"containerd://{digest[::-1]}", "state": {"running": {"startedAt": stamp}},
            "allocatedResources": resources["requests"], "resources": resources,
        }
        for c in containers
    ]  # fmt: skip
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    conditions = [{"type": kind, "status": "True", "lastTransitionTime": stamp} for kind in kinds]
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"web-{number}-7c9d8b6f5d", "uid": f"r{number}", "controller": True}
    return {
        "metadata": {
            "name": f"web-{number}-7c9d8b6f5d-{digest[-5:]}", "namespace": f"team-{number % 40}", "uid": uid,
            "resourceVersion": str(10**9 + i),
            "creationTimestamp": stamp, "labels": {"app": f"web-{number}", "koordinator.sh/qosClass": "LS"},
            "annotations": {"cni.projectcalico.org/podIP": f"10.0.{i // 250}.{i % 250}/32"}, "ownerReferences": [owner],
        },
        "spec": {
            "nodeName": f"n{i // 110}", "priority": 9500, "priorityClassName": "koord-prod", "containers": containers,
            "volumes": [{"name": f"kube-api-access-{digest[-5:]}", "projected": {"sources": []}}],
        },
        "status": {
            "phase": "Running", "qosClass": "Burstable", "conditions": conditions, "containerStatuses": states,
            "podIP": f"10.0.{i // 250}.{i % 250}",
            "podIPs": [{"ip": f"10.0.{i // 250}.{i % 250}"}], "startTime": stamp,
        },
    }  # fmt: skip


def test_a_real_pod_costs_little_more_than_two_hundred_bytes() -> None:
    """With its key in the store; counted by tracemalloc, so that it is the same on every machine."""
    import tracemalloc

    store, count = Informer("pods", Pod, PodSharer()), 4000
    for i in range(110):  # the templates
        store.receive(f"x/{i}", "1", msgspec.Raw(msgspec.json.encode(real(i + 10**6))))
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for i in range(count):
            made = real(i)
            key = f"{made['metadata']['namespace']}/{made['metadata']['name']}"
            store.receive(key, "1", msgspec.Raw(msgspec.json.encode(made)))
            del made
        gc.collect()
        each = (tracemalloc.get_traced_memory()[0] - before) / count
    finally:
        tracemalloc.stop()
    assert each < 260, f"{each:.0f} bytes"


@pytest.mark.parametrize("node", ["", "n1"])
def test_updates_leave_no_old_entry_in_an_index(node: str) -> None:
    store: Informer[Pod] = Informer("pods", Pod, PodSharer())
    store.index("node", lambda pod: pod.spec.node_name or None)
    for place in (node, "n2", "n3"):
        body = {"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {"nodeName": place}}
        store.receive("n/p", "1", msgspec.Raw(msgspec.json.encode(body)))
    assert [len(store.by_index("node", name)) for name in ("n1", "n2", "n3")] == [0, 0, 1]
    store.forget("n/p")
    assert store.by_index("node", "n3") == []
