"""What is compared, continued: what is filled in, what stays as it was made, and patches and lists at their edges."""

from __future__ import annotations

from typing import Any

from .customs import crd
from .objects import APPS, CLAIMS
from .scenarios import CRDS, MAPS, config_map
from .transcript import JSON_PATCH, MERGE, STRATEGIC, Transcript

NETWORK = "/apis/networking.k8s.io/v1"
SERVICES = "/api/v1/namespaces/{ns}/services"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
POLICIES = f"{NETWORK}/namespaces/{{ns}}/networkpolicies"
DAEMONS = APPS + "daemonsets"


def network_defaults(t: Transcript) -> None:
    subsets = [{"addresses": [{"ip": "10.1.2.3"}], "ports": [{"name": "t", "port": 80}, {"name": "u", "port": 81, "protocol": "UDP"}]}]
    t.verdict("POST", "/api/v1/namespaces/{ns}/endpoints", {"metadata": {"name": "e"}, "subsets": subsets})
    endpoints = [{"addresses": ["10.1.2.3"]}]
    slices = "/apis/discovery.k8s.io/v1/namespaces/{ns}/endpointslices"
    t.call("POST", slices, {"metadata": {"name": "e"}, "addressType": "IPv4", "endpoints": endpoints, "ports": [{"port": 80}]})
    rule = {"ports": [{"port": 80}]}
    for name, spec in (
        ("none", {"podSelector": {}}),
        ("in", {"podSelector": {}, "ingress": [rule]}),
        ("out", {"podSelector": {}, "egress": [rule]}),
        ("said", {"podSelector": {}, "egress": [rule], "policyTypes": ["Egress"]}),
    ):
        t.verdict("POST", POLICIES, {"metadata": {"name": name}, "spec": spec})
    parameters = {"apiGroup": "example.com", "kind": "P", "name": "p"}
    path = f"{NETWORK}/ingressclasses"
    t.call("POST", path, {"metadata": {"name": t.ns}, "spec": {"controller": "example.com/c", "parameters": parameters}})
    t.raw("DELETE", f"{path}/{t.ns}")


def limit_ranges(t: Transcript) -> None:
    limits: tuple[dict[str, Any], ...] = (
        {"type": "Container", "max": {"cpu": "2", "memory": "1Gi"}},
        {"type": "Container", "default": {"cpu": "1"}, "min": {"memory": "1Mi"}},
        {"type": "Container", "defaultRequest": {"cpu": "500m"}, "default": {"cpu": "1"}, "max": {"cpu": "4"}},
        {"type": "Pod", "max": {"cpu": "2"}},
    )
    for at, limit in enumerate(limits):
        t.verdict("POST", "/api/v1/namespaces/{ns}/limitranges", {"metadata": {"name": f"l{at}"}, "spec": {"limits": [limit]}})


def template_generations(t: Transcript) -> None:
    labels = {"a": "b"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}
    made = {"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": labels}, "template": template}}
    t.call("POST", DAEMONS, made)
    key = "deprecated.daemonset.template.generation"
    for change in (
        {"metadata": {"labels": {"l": "1"}}},
        {"spec": {"template": {"metadata": {"annotations": {"n": "1"}}}}},
        {"metadata": {"annotations": {key: "7"}}},
        {"metadata": {"annotations": None}},
        {"spec": {"minReadySeconds": 3}},
    ):
        _, out = t.raw("PATCH", DAEMONS + "/d", change, MERGE)
        t.note(annotations=out["metadata"].get("annotations"), generation=out["metadata"]["generation"])
    _, out = t.raw("PUT", DAEMONS + "/d", made)
    t.note(annotations=out["metadata"].get("annotations"), generation=out["metadata"]["generation"])


def service_ports(t: Transcript) -> None:
    for ports in (
        [{"name": "a", "port": 80}, {"name": "b", "port": 80}],
        [{"name": "a", "port": 80}, {"name": "b", "port": 80, "protocol": "UDP"}],
        [{"name": "a", "port": 80}, {"name": "a", "port": 81}],
    ):
        t.verdict("POST", SERVICES + "?dryRun=All", {"metadata": {"name": "s"}, "spec": {"clusterIP": "None", "ports": ports}})


def storage_classes_stay(t: Transcript) -> None:
    t.raw("POST", CLASSES, {"metadata": {"name": t.ns}, "provisioner": "p.io/a", "parameters": {"a": "1"}})
    for change in (
        {"provisioner": "p.io/b"},
        {"parameters": {"a": "2"}},
        {"parameters": None},
        {"reclaimPolicy": "Retain"},
        {"volumeBindingMode": "WaitForFirstConsumer"},
        {"allowVolumeExpansion": True},
    ):
        t.call("PATCH", f"{CLASSES}/{t.ns}", change, MERGE)
    t.raw("DELETE", f"{CLASSES}/{t.ns}")


def claims_grow(t: Transcript) -> None:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "8Gi"}}, "storageClassName": "x"}
    t.raw("POST", CLAIMS, {"metadata": {"name": "c"}, "spec": spec})

    def resize(**resources: Any) -> None:
        status, out = t.raw("PATCH", CLAIMS + "/c", {"spec": {"resources": resources}}, MERGE)
        t.note(asked=resources, status=status, causes=[[c["field"], c["reason"]] for c in (out.get("details") or {}).get("causes") or ()])

    resize(requests={"storage": "9Gi"})
    status = {"phase": "Bound", "capacity": {"storage": "4Gi"}}
    t.raw("PATCH", CLAIMS + "/c/status", {"status": status}, MERGE)
    for size in ("8Gi", "6Gi", "4Gi", "1Gi"):
        resize(requests={"storage": size})
    resize(limits={"storage": "9Gi"})


def whole_numbers(t: Transcript) -> None:
    labels = {"a": "b"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}
    for replicas in (2_147_483_647, 2_147_483_648, -2_147_483_649, 1 << 40):
        made = {"metadata": {"name": "d"}, "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}}
        t.verdict("POST", APPS + "deployments?dryRun=All", made)
    for pod in ({"terminationGracePeriodSeconds": 1 << 40}, {"priority": 1 << 40}, {"containers": [_ported(1 << 33)]}):
        made = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}], **pod}}
        t.verdict("POST", "/api/v1/namespaces/{ns}/pods?dryRun=All", made)
    budget = {"metadata": {"name": "b"}, "spec": {"minAvailable": 1 << 32}}
    t.verdict("POST", "/apis/policy/v1/namespaces/{ns}/poddisruptionbudgets?dryRun=All", budget)


def _ported(port: int) -> dict[str, Any]:
    return {"name": "c", "image": "i", "ports": [{"containerPort": port}]}


def structural_schemas(t: Transcript) -> None:
    def outcome(made: dict[str, Any]) -> None:
        status, out = t.raw("POST", CRDS + "?dryRun=All", made)
        fields = {c["field"] for c in (out.get("details") or {}).get("causes") or ()} - {"spec.version", "status.storedVersions"}
        t.note(status=status, fields=sorted(fields))

    text: dict[str, Any] = {"type": "string"}
    free, numbers = "x-kubernetes-preserve-unknown-fields", [{"type": "integer"}, {"type": "string"}]
    for inner in (
        {"type": "object", free: False},
        {**text, "anyOf": [{"type": "string", "minLength": 1}]},
        {**text, "anyOf": [{"minLength": 1}, {"maxLength": 3}]},
        {"x-kubernetes-int-or-string": True, "anyOf": numbers},
        {"x-kubernetes-int-or-string": True, "allOf": [{"anyOf": numbers}, {"pattern": "^a"}]},
        {"anyOf": numbers},
        {**text, "oneOf": [{"description": "d"}]},
        {**text, "allOf": [{"default": "a", "title": "t", "nullable": True}]},
        {"type": "object", "properties": {"a": text}, "not": {"properties": {"a": {"type": "string"}}}},
        {"type": "object", "properties": {"a": text}, "anyOf": [{"properties": {"a": {"pattern": "^x"}}, "required": ["a"]}]},
        {"type": "object", "properties": {"a": text}, "anyOf": [{"properties": {"b": {"pattern": "^x"}}}]},
        {"type": "object", "anyOf": [{"additionalProperties": {"minLength": 1}}]},
        {"type": "array", "items": text, "allOf": [{"items": {"minLength": 1}}]},
        {"x-kubernetes-int-or-string": True, free: True},
        {"type": "string", "x-kubernetes-embedded-resource": True},
        {"type": "object", "x-kubernetes-embedded-resource": True},
    ):
        outcome(crd(t, "structs", {"x": inner}))
    made = crd(t, "structs", {"x": text})
    made["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = {"type": "object", "additionalProperties": text}
    outcome(made)


def odd_patches(t: Transcript) -> None:
    t.raw("POST", MAPS, config_map("m", a="1"))
    for kind in (MERGE, STRATEGIC):
        for change in ({"apiVersion": None}, {"kind": None}, {"kind": "Secret"}, {"apiVersion": "v2"}, {"apiVersion": "", "kind": ""}):
            t.verdict("PATCH", MAPS + "/m", {**change, "data": {"b": "2"}}, kind)
    for key in ("apiVersion", "kind"):
        t.verdict("PATCH", MAPS + "/m", [{"op": "remove", "path": f"/{key}"}], JSON_PATCH)


def storage_order(t: Transcript) -> None:
    others = [f"{t.ns}{end}" for end in ("-a", "0", "a")]
    for namespace in others:
        t.raw("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    try:
        for namespace in (*others, t.ns):
            for name in ("x", "x-y", "x.y", "x0"):
                labelled = {"metadata": {"name": name, "labels": {"of": t.ns}}}
                t.raw("POST", f"/api/v1/namespaces/{namespace}/configmaps", labelled)
        for query in ("", "&limit=5"):
            _, out = t.raw("GET", f"/api/v1/configmaps?labelSelector=of%3D{t.ns}{query}")
            t.note(order=[f"{o['metadata']['namespace']}/{o['metadata']['name']}" for o in out["items"]])
    finally:
        for namespace in others:
            t.raw("DELETE", f"/api/v1/namespaces/{namespace}")


SCENARIOS = (
    network_defaults,
    limit_ranges,
    template_generations,
    service_ports,
    storage_classes_stay,
    claims_grow,
    odd_patches,
    structural_schemas,
    whole_numbers,
    storage_order,
)
