"""How much CPU the best-effort tier may use (KA-SUP-01). Pure."""

from __future__ import annotations

from dataclasses import dataclass

from koord.api.annotations import AnnotationError, node_reservation_resources, parse_node_reservation, raw_allocatable
from koord.api.names import RESOURCE_CPU
from koord.api.objects import Node
from koord.api.qos import KUBERNETES_BEST_EFFORT, QoSClass
from koord.api.quantity import milli_or
from koord.decisions.record import Term
from roles.koordlet.states.model import Snapshot
from roles.koordlet.states.slo import HostApp, ThresholdStrategy
from roles.koordlet.store import kinds


@dataclass(frozen=True, slots=True)
class Allowance:
    """``milli`` = capacity·threshold − others, at least the floor; terms in milli-cores. ``milli`` may be negative."""

    milli: int
    capacity: int
    threshold_percent: int
    non_be_pods: int
    non_be_host_apps: int
    system: int
    reserved: int
    floor: int | None

    def numbers(self) -> dict[str, float | int | str]:
        """For the decision record."""
        out: dict[str, float | int | str] = {
            "allowance_milli": self.milli,
            "capacity_milli": self.capacity,
            "threshold_percent": self.threshold_percent,
            "non_be_pods_milli": self.non_be_pods,
            "non_be_host_apps_milli": self.non_be_host_apps,
            "system_milli": self.system,
        }
        if self.floor is not None:
            out["floor_milli"] = self.floor
        return out

    def terms(self) -> tuple[Term, ...]:
        """The formula, in its order."""
        share = self.capacity * self.threshold_percent // 100
        out = (
            Term("capacity × threshold", share, f"{self.capacity}m × {self.threshold_percent}%", "milli"),
            Term("− pods that are not BE", -self.non_be_pods, "last sample; under pressure the last 0.2 s", "milli"),
            Term("− host applications that are not BE", -self.non_be_host_apps, "last sample", "milli"),
            Term("− system", -self.system, f"the larger of measured and reserved ({self.reserved}m)", "milli"),
        )
        return (*out, Term("floor", self.floor, "cpuSuppressMinPercent", "milli")) if self.floor is not None else out


def capacity_milli(node: Node) -> int:
    """CPU capacity of the node in milli-cores; 0 when it is not known."""
    return milli_or(node.status.capacity.get(RESOURCE_CPU))


def reserved_milli(node: Node) -> int:
    """The larger of capacity − allocatable and the reservation annotation. An annotation that cannot be read counts as none."""
    allocatable = raw_allocatable(node.status.allocatable, node.metadata.annotations)
    kept_back = max(capacity_milli(node) - milli_or(allocatable.get(RESOURCE_CPU)), 0)
    if RESOURCE_CPU not in allocatable:
        kept_back = 0
    try:
        reservation = parse_node_reservation(node.metadata.annotations)
    except AnnotationError:
        return kept_back
    if reservation is None:
        return kept_back
    return max(kept_back, milli_or(node_reservation_resources(reservation).get(RESOURCE_CPU)))


def is_be_app(app: HostApp) -> bool:
    return app.qos == QoSClass.BE and app.cgroup_path is not None and app.cgroup_path.base == "KubepodsBesteffort"


def allowance(snapshot: Snapshot, apps: tuple[HostApp, ...], threshold: ThresholdStrategy) -> Allowance | None:
    """The allowance of this tick; None while the node or its CPU use is not known, or no running pod's use is.

    Without any pod's use, what best-effort pods use themselves would be taken for the system's.
    """
    node = snapshot.node
    node_cpu = snapshot.metrics.last(kinds.NODE_CPU)
    if node is None or node_cpu is None:
        return None
    capacity = capacity_milli(node)
    if capacity <= 0:
        return None
    known = {pod.uid: pod for pod in snapshot.pods}
    all_pods = non_be = elsewhere = 0.0
    blind = any(pod.phase == "Running" for pod in snapshot.pods)
    for (uid,) in snapshot.metrics.keys(kinds.POD_CPU):
        used = snapshot.metrics.last(kinds.POD_CPU, pod_uid=uid)
        if used is None:
            continue
        blind = False
        all_pods += used
        pod = known.get(uid)
        # a pod that nobody knows may be anything: it is not taken from
        if pod is None or not pod.best_effort:
            non_be += used
        elif pod.kube_qos != KUBERNETES_BEST_EFFORT:
            elsewhere += used
    if blind:
        return None
    all_apps = non_be_apps = 0.0
    for app in apps:
        used = snapshot.metrics.last(kinds.HOST_APP_CPU, host_app_name=app.name)
        if used is None:
            continue
        all_apps += used
        if not is_be_app(app):
            non_be_apps += used
    reserved = reserved_milli(node)
    system = max(int(max(node_cpu - all_pods - all_apps, 0.0) * 1000), reserved)
    if snapshot.others_cpu is not None:
        non_be = max(non_be, snapshot.others_cpu - elsewhere)
    least = threshold.cpu_suppress_min_percent
    percent = threshold.cpu_suppress_threshold_percent
    return allowed(capacity, percent, int(non_be * 1000), int(non_be_apps * 1000), system, reserved, least)


def allowed(
    capacity: int, threshold_percent: int, non_be_pods: int, non_be_host_apps: int, system: int, reserved: int, min_percent: int | None
) -> Allowance:  # fmt: skip
    """The formula; amounts in milli-cores. `system` is the larger of what is measured and what is reserved."""
    floor = None if min_percent is None else capacity * min_percent // 100
    milli = capacity * threshold_percent // 100 - non_be_pods - non_be_host_apps - system
    return Allowance(
        milli if floor is None else max(milli, floor),
        capacity, threshold_percent, non_be_pods, non_be_host_apps, system, reserved, floor,
    )  # fmt: skip
