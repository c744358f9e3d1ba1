"""Pod status from container states."""

from __future__ import annotations

import pytest

from koord.api.times import format_time
from roles.sandbox.process_kubelet import status
from roles.sandbox.process_kubelet.readiness import Readiness
from roles.sandbox.process_kubelet.status import ContainerState
from roles.sandbox.process_kubelet.worker import Host, PodWorker


def ended(code: int) -> ContainerState:
    done = status.terminated(code, 0, status.reason_of(code, False), started=1, finished=2, container_id="containerd://x")
    return ContainerState("c", terminated=done)


def running() -> ContainerState:
    return ContainerState("c", running_since=1.0, ready=True)


@pytest.mark.parametrize(
    ("policy", "init", "regular", "phase"),
    [
        ("Always", [], [ContainerState("c")], "Pending"),
        ("Always", [ContainerState("i")], [ContainerState("c")], "Pending"),
        ("Never", [ended(1)], [ContainerState("c")], "Failed"),
        ("Always", [ended(1)], [ContainerState("c")], "Pending"),
        ("Always", [ended(0)], [running()], "Running"),
        ("Always", [], [running(), ContainerState("c")], "Pending"),
        ("Never", [], [running(), ended(0)], "Running"),
        ("Never", [], [ended(0), ended(0)], "Succeeded"),
        ("Never", [], [ended(0), ended(3)], "Failed"),
        ("OnFailure", [], [ended(3)], "Running"),
        ("OnFailure", [], [ended(0)], "Succeeded"),
        ("Always", [], [ended(0)], "Running"),
    ],
)
def test_phase(policy: str, init: list[ContainerState], regular: list[ContainerState], phase: str) -> None:
    assert status.phase(policy, init, regular) == phase


def test_transition_time_moves_only_with_the_status() -> None:
    first = status.conditions("Running", True, False, [], 100)
    second = status.conditions("Running", True, False, first, 200)
    assert [c["lastTransitionTime"] for c in second] == [c["lastTransitionTime"] for c in first]
    third = {c["type"]: c for c in status.conditions("Running", True, True, second, 300)}
    assert third["Ready"]["lastTransitionTime"] == format_time(300)
    assert third["Initialized"]["lastTransitionTime"] == format_time(100)


def test_foreign_conditions_stay() -> None:
    previous = [{"type": "example.com/gate", "status": "True"}]
    assert previous[0] in status.conditions("Running", True, True, previous, 1)


def test_backoff_doubles_to_five_minutes_and_resets() -> None:
    values, last = [], 0.0
    for _ in range(7):
        last = status.next_backoff(last, ran_for=1)
        values.append(last)
    assert values == [10, 20, 40, 80, 160, 300, 300]
    assert status.next_backoff(300, ran_for=601) == 10


GOOD = {"containers": [{"name": "c", "command": ["true"]}]}
YES = {status.PROCESS_ANNOTATION: "true"}


@pytest.mark.parametrize(
    ("spec", "annotations", "word"),
    [
        (GOOD, {}, status.PROCESS_ANNOTATION),
        (GOOD, {status.PROCESS_ANNOTATION: "yes"}, status.PROCESS_ANNOTATION),
        ({"containers": [{"name": "c", "image": "nginx"}]}, YES, "no command"),
        ({**GOOD, "volumes": [{"name": "v"}]}, YES, "volumes"),
        ({"containers": [{"name": "c", "command": ["true"], "livenessProbe": {"exec": {}}}]}, YES, "liveness"),
        ({"containers": [{"name": "c", "command": ["true"], "env": [{"name": "A", "valueFrom": {"secretKeyRef": {}}}]}]}, YES, "env A"),
        ({**GOOD, "initContainers": [{"name": "s", "command": ["true"], "restartPolicy": "Always"}]}, YES, "sidecars"),
    ],
)
def test_what_cannot_run_is_refused_with_the_reason(spec: dict, annotations: dict, word: str) -> None:
    assert word in (status.refusal(spec, annotations) or "")


def test_a_pod_that_agrees_is_not_refused() -> None:
    assert status.refusal(GOOD, YES) is None


def test_readiness_thresholds() -> None:
    probe = Readiness({"successThreshold": 2, "failureThreshold": 2})
    assert [probe.observe(ok) for ok in (True, False, True, True, True, False, True, False, False)] == [
        False, False, False, True, False, False, False, False, True,
    ]  # fmt: skip
    assert probe.ready is False


def test_an_older_object_changes_nothing(tmp_path) -> None:
    """What the watch shows lags behind what was written: its times are not written back, which would never end."""
    now = [1000.0]
    host = Host(None, tmp_path, "10.0.0.1", 0, lambda: now[0], None, None)  # type: ignore[arg-type]
    pod = {"metadata": {"name": "a", "uid": "u"}, "spec": {"containers": [{"name": "main"}]}, "status": {"phase": "Pending"}}
    worker = PodWorker(pod, host)
    first = worker.status()
    now[0] += 5
    worker.regular[0].running_since, worker.regular[0].ready = now[0], True
    second = worker.status()
    assert first["conditions"] != second["conditions"]
    for seen in (pod, {**pod, "status": first}, {**pod, "status": second}, {**pod, "status": first}):
        now[0] += 1
        worker.update(seen)
        assert worker.status() == second
    other = {"type": "example.com/gate", "status": "True"}
    worker.update({**pod, "status": {**first, "conditions": [other, *first["conditions"]]}})
    assert worker.status()["conditions"] == [other, *second["conditions"]]
