"""The API objects of a sandbox and its demo: priority classes, the profile, the service, its load, the batch jobs (pure)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from koord.api import names
from koord.api.kinds import CLUSTERCOLOCATIONPROFILES, CONFIGMAPS, NAMESPACES, PODS, PRIORITYCLASSES
from roles.sandbox.builders import APP_LABEL, SCHEDULER, container, obj
from roles.sandbox.nodes.fleet import CURVE_ANNOTATION, RUN_SECONDS_ANNOTATION
from roles.sandbox.process_kubelet.node import SANDBOX_LABEL
from roles.sandbox.process_kubelet.status import PROCESS_ANNOTATION
from roles.sandbox.scenario import PhaseKind, Scenario
from roles.sandbox.sizing import MEMORY_BURNER_REQUEST

SYSTEM_NAMESPACE = "koordinator-system"
SLO_CONFIG = "slo-controller-config"
PROFILE = "sandbox-batch"
COLOCATION_LABEL = "koordinator.sh/enable-colocation"
# The lower end of each band: what upstream's installation creates.
PRIORITY_CLASSES = (("koord-prod", 9000), ("koord-mid", 7000), ("koord-batch", 5000), ("koord-free", 3000))


def self_command() -> list[str]:
    """The command line of this very program, for pods that run a part of it: the frozen binary, or this interpreter."""
    if getattr(sys, "frozen", False):
        return [sys.executable]
    return [sys.executable, "-m", "koord.cli"]


def namespace(name: str, labels: dict[str, str] | None = None) -> dict[str, Any]:
    return obj(NAMESPACES, name, labels=labels or {})


def priority_class(name: str, value: int) -> dict[str, Any]:
    told = f"koord priority band from {value}"
    return obj(PRIORITYCLASSES, name, value=value, globalDefault=False, preemptionPolicy="PreemptLowerPriority", description=told)


def slo_config(data: dict[str, str]) -> dict[str, Any]:
    return obj(CONFIGMAPS, SLO_CONFIG, SYSTEM_NAMESPACE, data=data)


def profile() -> dict[str, Any]:
    """Everything in a namespace labelled for co-location becomes BE batch, placed by koord's scheduler."""
    spec = {
        "namespaceSelector": {"matchLabels": {COLOCATION_LABEL: "true"}},
        "qosClass": "BE",
        "priorityClassName": "koord-batch",
        "schedulerName": SCHEDULER,
        "labels": {"koordinator.sh/mutated": "true"},
    }
    return obj(CLUSTERCOLOCATIONPROFILES, PROFILE, spec=spec)


def process_pod(
    name: str,
    namespace_: str,
    command: Sequence[str],
    *,
    app: str,
    requests: dict[str, str],
    limits: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    env: dict[str, str] | None = None,
    node: str | None = None,
    restart: str = "Always",
    probe: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """A pod whose command runs as a process on this machine. With `node` it is put there directly, otherwise the scheduler places it."""
    process = container(app, "sandbox/process", requests, limits) | {
        "command": list(command),
        "env": [{"name": key, "value": value} for key, value in (env or {}).items()],
    }
    if probe:
        process["readinessProbe"] = probe
    spec: dict[str, Any] = {"restartPolicy": restart, "terminationGracePeriodSeconds": 1, "containers": [process]}
    if node:
        spec["nodeName"] = node
    else:
        spec |= {"schedulerName": SCHEDULER, "nodeSelector": {SANDBOX_LABEL: "process"}}
    return obj(PODS, name, namespace_, labels={APP_LABEL: app, **(labels or {})}, annotations={PROCESS_ANNOTATION: "true"}, spec=spec)


def python_env() -> dict[str, str]:
    """Where an unfrozen interpreter finds this package when it is not installed (a source checkout)."""
    if getattr(sys, "frozen", False):
        return {}
    return {"PYTHONPATH": str(Path(__file__).resolve().parents[2]), "PYTHONDONTWRITEBYTECODE": "1"}


def resident_pod(node: str) -> dict[str, Any]:
    """A pod that is always on the local node and does nothing, as a node's own daemons are."""
    return process_pod(
        f"resident-{node}",
        "kube-system",
        ["/bin/sleep", "2147483647"],
        app="resident",
        requests={"cpu": "10m", "memory": "8Mi"},
        node=node,
    )


def service_pod(scenario: Scenario, port: int, iterations: int) -> dict[str, Any]:
    """The latency-sensitive HTTP service."""
    return process_pod(
        "shop",
        scenario.service.namespace,
        [
            *self_command(),
            *("sandbox", "workload", "serve", f"--port={port}", f"--iterations={iterations}", f"--workers={scenario.service.workers}"),
        ],
        app="shop",
        requests={"cpu": scenario.service.cpu_request, "memory": scenario.service.memory_request},
        labels={names.LABEL_POD_QOS: "LS"},
        env=python_env(),
        probe={"httpGet": {"path": "/healthz", "port": port}, "periodSeconds": 10},
    )


def load_pod(scenario: Scenario, name: str, port: int, node: str) -> dict[str, Any]:
    """A load generator. It is the instrument, not the subject: it is put on the node directly, full or not."""
    steps = [f"--step={step.rate:g}:{step.seconds:g}" for step in scenario.load.steps]
    return process_pod(
        name,
        scenario.service.namespace,
        [*self_command(), "sandbox", "workload", "load", f"--port={port}", *steps],
        app="load",
        requests={"cpu": scenario.load.cpu_request, "memory": "64Mi"},
        labels={names.LABEL_POD_QOS: "LS"},
        env=python_env(),
        node=node,
        restart="Never",
    )


def batch_pods(scenario: Scenario, kind: PhaseKind, node: str, each: int) -> list[dict[str, Any]]:
    """CPU burners that request `each` milli-CPU, and memory burners; no limits. Under koord in the labelled namespace, else put on the
    node directly; with `shares` they request nothing: Kubernetes then makes them BestEffort pods, which have the least CPU weight."""
    batch = scenario.batch
    managed = kind == "koord"

    def burner(name: str, command: list[str], requests: dict[str, str]) -> dict[str, Any]:
        return process_pod(
            name,
            batch.namespace if managed else batch.unmanaged_namespace,
            [*self_command(), "sandbox", "workload", *command],
            app="burner",
            requests={} if kind == "shares" else requests,
            env=python_env(),
            node=None if managed else node,
        )

    pods = [burner(f"cpu-{i}", ["burn-cpu"], {"cpu": f"{each}m", "memory": "64Mi"}) for i in range(batch.cpu_burners)]
    memory = {"cpu": f"{MEMORY_BURNER_REQUEST}m", "memory": batch.memory_request}
    pods += [burner(f"memory-{i}", ["burn-memory", f"--mib={batch.memory_mib}"], memory) for i in range(batch.memory_burners)]
    return pods


def simulated_batch_pods(scenario: Scenario) -> list[dict[str, Any]]:
    """Batch pods for the simulated nodes; they end after a while."""
    amounts = {"cpu": "2", "memory": "4Gi"}
    spec = {
        "restartPolicy": "Never",
        "schedulerName": SCHEDULER,
        "nodeSelector": {SANDBOX_LABEL: "simulated"},
        "containers": [container("etl", "sandbox/etl", amounts, amounts)],
    }
    pods = []
    for index in range(scenario.nodes.batch_pods):
        notes = {CURVE_ANNOTATION: "steady", RUN_SECONDS_ANNOTATION: str(60 + 7 * (index % 9))}
        pods.append(obj(PODS, f"etl-{index:03d}", scenario.batch.namespace, labels={APP_LABEL: "etl"}, annotations=notes, spec=spec))
    return pods
