"""Projections: what is read, what null means, what is refused."""

from __future__ import annotations

import contextlib
import inspect

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api import objects
from koord.api.kinds import ALL, BY_GVK, BY_KIND, BY_PLURAL, CUSTOM, NODES, PODS
from koord.api.objects import CSINode, NodeMetric, NodeSLO, Object, Pod, Projection, RawList, Reservation, decode

POD = b"""{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","namespace":"n","creationTimestamp":null,"managedFields":[{"x":1}],
"labels":{"koordinator.sh/qosClass":"LS"},"ownerReferences":[{"kind":"ReplicaSet","name":"r","uid":"u","apiVersion":"apps/v1","controller":true}]},
"spec":{"nodeName":"node","unknown":{"deep":[1]},"hostPID":true,"containers":[{"name":"c","command":["x"],"args":["--v"],"env":[{"name":"A","value":"1"}],
"resources":{"requests":{"cpu":"1","memory":1024,"x/y":1.5}},"ports":[{"containerPort":80,"hostIP":"0.0.0.0"}]}],
"affinity":{"podAntiAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[{"topologyKey":"kubernetes.io/hostname"}]}}},
"status":{"podIP":"10.0.0.1","podIPs":[{"ip":"10.0.0.1"}],"hostIP":"1.1.1.1","qosClass":"Burstable",
"containerStatuses":[{"name":"c","containerID":"containerd://abc","imageID":"i","restartCount":2,"state":{"running":{"startedAt":"2024-01-01T00:00:00Z"}}}],
"conditions":[{"type":"Ready","status":"True","lastProbeTime":null}]}}"""


def projections() -> list[type[Projection]]:
    return [item for _, item in inspect.getmembers(objects, inspect.isclass) if issubclass(item, Projection)]


def test_a_pod_is_read() -> None:
    pod = decode(POD, Pod)
    assert pod.key == "n/a"
    assert pod.metadata.controller is not None
    assert pod.metadata.controller.name == "r"
    assert pod.spec.host_pid
    assert pod.spec.containers[0].resources.requests == {"cpu": "1", "memory": 1024, "x/y": 1.5}
    assert pod.spec.containers[0].ports[0].host_ip == "0.0.0.0"
    assert pod.spec.affinity is not None
    assert pod.spec.affinity.pod_anti_affinity is not None
    assert pod.spec.affinity.pod_anti_affinity.required[0].topology_key == "kubernetes.io/hostname"
    status = pod.status
    assert (status.pod_ip, status.host_ip, status.qos_class, status.pod_ips[0].ip) == ("10.0.0.1", "1.1.1.1", "Burstable", "10.0.0.1")
    assert status.container_statuses[0].container_id == "containerd://abc"
    assert status.container_statuses[0].state.running is not None
    assert status.conditions[0].last_probe_time is None


@pytest.mark.parametrize("target", [item for item in projections() if issubclass(item, Object)])
def test_null_is_absent_in_every_field(target: type[Object]) -> None:
    empty = decode(b"{}", target)
    nulls = {field.encode_name: None for field in msgspec.structs.fields(target)}
    assert decode(msgspec.json.encode(nulls), target) == empty
    for part in ("metadata", "spec", "status"):
        if part in nulls:
            assert decode(msgspec.json.encode({part: {}}), target) == empty


def test_null_deep_inside_is_absent() -> None:
    node = decode(b'{"metadata":{"name":"a","labels":null},"spec":{"drivers":null}}', CSINode)
    assert node.spec.drivers == ()
    assert node.metadata.labels == {}
    metric = decode(b'{"status":{"podsMetric":[{"name":"p","podUsage":{"resources":null,"devices":null}}]}}', NodeMetric)
    assert metric.status.pods_metric[0].pod_usage.resources == {}


def test_a_plain_spec_keeps_what_is_unset_apart_from_zero() -> None:
    slo = decode(b'{"spec":{"resourceUsedThresholdWithBE":{"cpuSuppressThresholdPercent":0}}}', NodeSLO)
    assert slo.spec == {"resourceUsedThresholdWithBE": {"cpuSuppressThresholdPercent": 0}}


@pytest.mark.parametrize(
    ("data", "where"),
    [
        (b'{"spec":{"containers":{}}}', r"\$.spec.containers"),
        (b'{"metadata":{"labels":{"a":1}}}', r"\$.metadata.labels"),
        (b'{"spec":{"priority":"high"}}', r"\$.spec.priority"),
        (b'{"spec":{"containers":[{"resources":{"requests":{"cpu":true}}}]}}', r"requests"),
        (b'{"metadata":{"labels":null},"spec":{"hostNetwork":1}}', r"\$.spec.hostNetwork"),
    ],
)
def test_a_wrong_type_is_refused_with_its_path(data: bytes, where: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=where):
        decode(data, Pod)


@given(st.binary(max_size=40))
def test_no_bytes_crash_the_decoder(data: bytes) -> None:
    with contextlib.suppress(msgspec.DecodeError):
        decode(data, Pod)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["metadata", "spec", "status", "template", "owners", "labels", "x"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(json_values)
def test_any_json_is_read_or_refused(value: object) -> None:
    with contextlib.suppress(msgspec.ValidationError):
        assert isinstance(decode(msgspec.json.encode(value), Reservation), Reservation)


def test_projections_cannot_be_changed() -> None:
    pod = decode(POD, Pod)
    with pytest.raises(AttributeError):
        pod.spec.node_name = "other"  # type: ignore[misc]
    assert msgspec.structs.replace(pod.spec, node_name="other").node_name == "other"


def test_one_bad_item_does_not_spoil_a_list() -> None:
    raw = decode(b'{"metadata":{"resourceVersion":"5","continue":"x"},"items":[{"spec":[]},{"metadata":{"name":"a"}}]}', RawList)
    assert (raw.metadata.resource_version, raw.metadata.continue_) == ("5", "x")
    assert raw.items is not None
    with pytest.raises(msgspec.ValidationError):
        decode(raw.items[0], Pod)
    assert decode(raw.items[1], Pod).metadata.name == "a"


@pytest.mark.parametrize("kind", CUSTOM)
def test_every_custom_kind_has_a_projection(kind) -> None:  # type: ignore[no-untyped-def]
    assert issubclass(getattr(objects, kind.kind), Object)


def test_kinds() -> None:
    assert PODS.path() == "/api/v1/pods"
    assert PODS.path("ns", "a", "binding") == "/api/v1/namespaces/ns/pods/a/binding"
    assert NODES.path("ignored", "n") == "/api/v1/nodes/n"
    assert BY_KIND["Reservation"].path(name="r", subresource="status") == "/apis/scheduling.koordinator.sh/v1alpha1/reservations/r/status"
    assert BY_KIND["Device"].subresources == frozenset()
    assert BY_PLURAL["elasticquotas"].api_version == "scheduling.sigs.k8s.io/v1alpha1"
    assert len(BY_PLURAL) == len(BY_KIND) == len(ALL)
    assert BY_GVK["v1", "Event"].plural == "events"
    assert PODS.path("a/b", "c?d") == "/api/v1/namespaces/a%2Fb/pods/c%3Fd"
    with pytest.raises(ValueError, match="needs an object name"):
        PODS.path(subresource="status")
