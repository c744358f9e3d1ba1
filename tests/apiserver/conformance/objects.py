"""What is compared, continued: what kinds beside pods and nodes insist on."""

from __future__ import annotations

from typing import Any

from .scenarios import MAPS, config_map
from .transcript import MERGE, Transcript

SECRETS = "/api/v1/namespaces/{ns}/secrets"
EVENTS, NEWER_EVENTS = "/api/v1/namespaces/{ns}/events", "/apis/events.k8s.io/v1/namespaces/{ns}/events"
APPS = "/apis/apps/v1/namespaces/{ns}/"
CLAIMS = "/api/v1/namespaces/{ns}/persistentvolumeclaims"


def immutable_data(t: Transcript) -> None:
    t.call("POST", MAPS, {**config_map("i", a="1"), "immutable": True})
    for change in ({"data": {"a": "2"}}, {"immutable": False}, {"metadata": {"labels": {"l": "1"}}}, {"binaryData": {"b": "AAA="}}):
        t.call("PATCH", MAPS + "/i", change, MERGE)
    t.raw("POST", SECRETS, {"metadata": {"name": "s"}, "immutable": True, "data": {"a": "YQ=="}})
    t.call("PATCH", SECRETS + "/s", {"stringData": {"a": "2"}}, MERGE)
    t.call("POST", MAPS, {**config_map("j", a="1"), "binaryData": {"a": "AAA="}})
    for key in ("bad key", "..", "x" * 254):
        t.verdict("POST", MAPS, config_map("k", **{key: "1"}))


def secret_types(t: Transcript) -> None:
    for kind, data in (
        ("tls", {}),
        ("dockerconfigjson", {}),
        ("dockerconfigjson", {".dockerconfigjson": "e30="}),
        ("dockercfg", {".dockercfg": "e30="}),
        ("basic-auth", {}),
        ("basic-auth", {"password": ""}),
        ("ssh-auth", {}),
        ("service-account-token", {}),
    ):
        t.call("POST", SECRETS + "?dryRun=All", {"metadata": {"name": "t"}, "type": f"kubernetes.io/{kind}", "data": data})
    t.verdict("POST", SECRETS, {"metadata": {"name": "t"}, "type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": "YQ=="}})


def events(t: Transcript) -> None:
    about = {"kind": "Pod", "namespace": t.ns, "name": "p"}
    t.call("POST", EVENTS, {"metadata": {"name": "e"}, "involvedObject": about, "reason": "R", "message": "m", "type": "Normal"})
    newer: dict[str, Any] = {
        "regarding": about, "reason": "R", "action": "A", "type": "Normal", "note": "hi", "eventTime": "2024-01-01T00:00:00.000000Z",
        "reportingController": "x.io/c", "reportingInstance": "i",
    }  # fmt: skip
    t.call("POST", NEWER_EVENTS, {"metadata": {"name": "n"}, **newer})
    t.call("GET", EVENTS + "/n")
    for change in ({"type": "Odd"}, {"type": ""}, {"note": "x" * 1025}, {"note": "x" * 1024}):
        t.verdict("POST", NEWER_EVENTS + "?dryRun=All", {"metadata": {"name": "o"}, **newer, **change})
    for key in ("eventTime", "reason", "action", "reportingController", "reportingInstance"):
        status, _ = t.raw("POST", NEWER_EVENTS + "?dryRun=All", {"metadata": {"name": "o"}, **{**newer, key: None}})
        t.note(without=key, status=status)


def exact_times(t: Transcript) -> None:
    """Times with microseconds have six digits of them."""
    leases = "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases?dryRun=All"
    for time in (
        "2024-01-01T00:00:00.123456Z",
        "2024-01-01T02:00:00.123456+02:00",
        "2024-01-01T00:00:00Z",
        "2024-01-01T00:00:00.123Z",
        "x",
    ):
        status, out = t.raw("POST", leases, {"metadata": {"name": "l"}, "spec": {"renewTime": time}})
        t.note(time=time.replace("Z", "z"), status=status, taken=out.get("spec", {}).get("renewTime", "").replace("Z", "z"))


def workload_updates(t: Transcript) -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}
    made = {"metadata": {"name": "w"}, "spec": {"serviceName": "x", "selector": {"matchLabels": {"a": "b"}}, "template": template}}
    t.call("POST", APPS + "statefulsets", made)
    for change in ({"serviceName": "y"}, {"replicas": 3}, {"podManagementPolicy": "Parallel"}, {"minReadySeconds": 5}):
        t.verdict("PATCH", APPS + "statefulsets/w", {"spec": change}, MERGE)
    jobs, spec = "/apis/batch/v1/namespaces/{ns}/jobs?dryRun=All", {"containers": [{"name": "c", "image": "i:1"}]}
    for wanted in (
        {"template": {"spec": spec}},
        {"template": {"spec": {**spec, "restartPolicy": "Always"}}},
        {"template": {"spec": {**spec, "restartPolicy": "Never"}}, "parallelism": -1, "completionMode": "Odd"},
    ):
        t.verdict("POST", jobs, {"metadata": {"name": "j"}, "spec": wanted})
    budgets = "/apis/policy/v1/namespaces/{ns}/poddisruptionbudgets?dryRun=All"
    for policy in ("Nope", "AlwaysAllow"):
        t.verdict("POST", budgets, {"metadata": {"name": "b"}, "spec": {"unhealthyPodEvictionPolicy": policy}})


def volume_claims(t: Transcript) -> None:
    size = {"requests": {"storage": "1Gi"}}
    for spec in ({}, {"accessModes": ["ReadWriteOnce"]}):
        t.verdict("POST", CLAIMS, {"metadata": {"name": "c"}, "spec": spec})
    status, _ = t.raw("POST", CLAIMS, {"metadata": {"name": "d"}, "spec": {"accessModes": ["No"], "resources": size}})
    t.note(status=status)
    t.raw("POST", CLAIMS, {"metadata": {"name": "c"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": size}})
    for change in ({"accessModes": ["ReadWriteMany"]}, {"storageClassName": "x"}):
        status, out = t.raw("PATCH", CLAIMS + "/c", {"spec": change}, MERGE)
        t.note(change=change, status=status, causes=[[c["field"], c["reason"]] for c in (out.get("details") or {}).get("causes") or ()])


SCENARIOS = (immutable_data, secret_types, events, exact_times, workload_updates, volume_claims)
