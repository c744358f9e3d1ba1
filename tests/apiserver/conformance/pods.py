"""What is compared, continued: what is no pod, and what of a pod may still change."""

from __future__ import annotations

from typing import Any

from .scenarios import PODS, pod
from .transcript import MERGE, STRATEGIC, Transcript


def _c(**more: Any) -> dict[str, Any]:
    return {"name": "c", "image": "i:1", **more}


# the specification beside its only container, or all of it
_SPECS: tuple[dict[str, Any], ...] = (
    {"containers": [_c(), _c()]},
    {"containers": [_c(ports=[{"containerPort": 80}, {"containerPort": 80}])]},
    {"containers": [_c(ports=[{"containerPort": 80, "name": "toolongportnamehere"}])]},
    {"containers": [_c(ports=[{"containerPort": 80, "hostPort": 99999}])]},
    {"containers": [_c(env=[{"name": "1x", "value": "a"}])]},
    {"containers": [_c(env=[{"name": "A", "value": "a", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}])]},
    {"containers": [_c(env=[{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.bad"}}}])]},
    {"containers": [_c(volumeMounts=[{"name": "no", "mountPath": "/x"}])]},
    {
        "containers": [_c(volumeMounts=[{"name": "v", "mountPath": "/x"}, {"name": "v", "mountPath": "/x"}])],
        "volumes": [{"name": "v", "emptyDir": {}}],
    },
    {"volumes": [{"name": "v"}, {"name": "v"}]},
    {"volumes": [{"name": "v", "emptyDir": {}, "hostPath": {"path": "/"}}]},
    {"containers": [_c(resources={"requests": {"memory": "1.5"}})]},
    {"containers": [_c(resources={"requests": {"ephemeral-storage": "-1"}})]},
    {"containers": [_c(resources={"limits": {"hugepages-2Mi": "1"}})]},
    {"containers": [_c(resources={"limits": {"hugepages-2Mi": "2Mi"}})]},
    {"containers": [_c(resources={"limits": {"hugepages-2Mi": "2Mi", "cpu": "1"}})]},
    {"containers": [_c(resources={"requests": {"badname": "1"}})]},
    {"containers": [_c(resources={"limits": {"kubernetes.io/batch-cpu": "1500"}, "requests": {"kubernetes.io/batch-cpu": "1000"}})]},
    {"containers": [_c(resources={"limits": {"koordinator.sh/gpu": "1.5"}})]},
    {"initContainers": [_c()]},
    {"initContainers": [{"name": "i", "image": "x", "restartPolicy": "Always"}]},
    {"initContainers": [{"name": "i", "image": "x", "restartPolicy": "Never"}]},
    {"containers": [_c(livenessProbe={"httpGet": {"port": 80}, "exec": {"command": ["x"]}})]},
    {"containers": [_c(livenessProbe={})]},
    {"containers": [_c(lifecycle={"preStop": {}})]},
    {
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In"}]}]
                }
            }
        }
    },
    {
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["x"]}]}]
                }
            }
        }
    },
    {
        "affinity": {
            "podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 200, "podAffinityTerm": {"topologyKey": "a"}}]}
        }
    },
    {
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule"},
            {"maxSkew": 2, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule"},
        ]
    },
    {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "ScheduleAnyway", "minDomains": 2}]},
    {"tolerations": [{"key": "a", "operator": "Exists", "value": "x"}]},
    {"tolerations": [{"operator": "Equal", "value": "x"}]},
    {"tolerations": [{"key": "a", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 5}]},
    {"nodeSelector": {"bad key": "x"}},
    {"nodeSelector": {"a": "bad value!"}},
    {"priorityClassName": "system-cluster-critical"},
    {"preemptionPolicy": "Never"},
    {"schedulerName": ""},
    {"hostNetwork": True, "containers": [_c(ports=[{"containerPort": 80, "hostPort": 81}])]},
    {"securityContext": {"sysctls": [{"name": "net.x", "value": "1"}, {"name": "net.x", "value": "1"}]}},
    {"restartPolicy": "Never", "activeDeadlineSeconds": 0},
    {"terminationGracePeriodSeconds": -5},
    {"readinessGates": [{"conditionType": "bad type"}]},
    {"schedulingGates": [{"name": "a"}, {"name": "a"}]},
    {"hostname": "Bad_"},
    {"subdomain": "x.y"},
    {"imagePullSecrets": [{"name": ""}]},
    {"resources": {"requests": {"cpu": "2"}}, "containers": [_c(resources={"requests": {"cpu": "3"}})]},
    {"resourceClaims": [{"name": "a"}]},
    {"os": {"name": "bsd"}},
    {"dnsPolicy": "None"},
    {"hostPID": True, "shareProcessNamespace": True},
    {"nodeName": "Bad_"},
    {"enableServiceLinks": False},
    {
        "resources": {"requests": {"cpu": "3"}, "limits": {"cpu": "3", "memory": "1Gi"}},
        "containers": [_c(resources={"requests": {"cpu": "3"}})],
    },
)


def pod_specs(t: Transcript) -> None:
    for spec in _SPECS:
        status, out = t.raw("POST", PODS + "?dryRun=All", pod("x", **{"containers": [_c()], **spec}))
        causes = sorted([c["field"], c["reason"]] for c in (out.get("details") or {}).get("causes") or ())
        spec = {**spec, "qosClass": out["status"]["qosClass"]} if status == 201 else spec
        t.note(spec=spec, status=status, causes=causes, grace=(out.get("spec") or {}).get("terminationGracePeriodSeconds"))


def pod_updates(t: Transcript) -> None:
    t.raw("POST", PODS, pod("p", tolerations=[{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}]))
    for change, kind in (
        ({"spec": {"tolerations": [{"key": "z", "operator": "Exists"}]}}, MERGE),
        ({"spec": {"tolerations": []}}, MERGE),
        ({"spec": {"terminationGracePeriodSeconds": 1}}, MERGE),
        ({"spec": {"nodeName": "n"}}, MERGE),
        ({"spec": {"priority": 5}}, MERGE),
        ({"spec": {"nodeSelector": {"a": "b"}}}, MERGE),
        ({"spec": {"affinity": {"nodeAffinity": {}}}}, MERGE),
        ({"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}}, MERGE),
        ({"metadata": {"deletionTimestamp": "2024-01-01T00:00:00Z"}}, MERGE),
        ({"metadata": {"generation": 9}}, MERGE),
        ({"metadata": {"namespace": "other"}}, MERGE),
        ({"spec": {"containers": [{"name": "c", "image": ""}]}}, STRATEGIC),
        ({"spec": {"containers": [{"name": "c", "$patch": "delete"}]}}, STRATEGIC),
        ({"spec": {"activeDeadlineSeconds": -1}}, MERGE),
    ):
        t.verdict("PATCH", PODS + "/p?dryRun=All", change, kind)
    t.raw("POST", PODS, pod("g", schedulingGates=[{"name": "a/b"}, {"name": "c/d"}], nodeSelector={"x": "y"}))
    term = {"matchExpressions": [{"key": "a", "operator": "Exists"}]}
    for spec in (
        {"schedulingGates": [{"name": "a/b"}]},
        {"schedulingGates": [{"name": "new/g"}]},
        {"nodeSelector": {"x": "z"}},
        {"nodeSelector": {"x": None}},
        {"nodeSelector": {"n": "m"}},
        {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}},
        {"affinity": {"podAffinity": {}}},
    ):
        t.verdict("PATCH", PODS + "/g?dryRun=All", {"spec": spec}, MERGE)


SCENARIOS = (pod_specs, pod_updates)
