"""docs/reference/metrics.md: every metric of every role, collected from the registries that the roles fill."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from koord.decisions.recorder import Recorder
from koord.process import metrics as common
from koord.process.health import Health
from koord.process.slis import Slis
from roles.descheduler.metrics import Metrics as DeschedulerMetrics
from roles.descheduler.migration.reporting import MigrationMetrics
from roles.koordlet.metrics.registry import Metrics as KoordletMetrics
from roles.manager.metrics import Metrics as ManagerMetrics
from roles.runtime_proxy.metrics import Metrics as ProxyMetrics
from roles.scheduler.auditor import AuditMetrics
from roles.scheduler.metrics import SchedulerMetrics, standing
from roles.scheduler.plugins.coscheduling.metrics import GangMetrics
from roles.scheduler.plugins.device_share.metrics import PlanMetric
from roles.scheduler.plugins.elastic_quota.metrics import QuotaMetrics
from roles.scheduler.plugins.reservation.metrics import ReservationMetrics
from roles.scheduler.resource_metrics import pod_resources
from roles.tools.reference.markdown import code, page, table

_PATHS = {
    "scheduler": "`/metrics` of `--port` (10251) and `--secure-port`; `kube_pod_resource_*` at `/metrics/resources` of the leader.",
    "manager": "`/metrics` of `--metrics-addr` (:8080).",
    "koordlet": "`/metrics` of `--addr` (:9316); `/internal-metrics` and `/external-metrics` have one part each.",
    "descheduler": "`/metrics` of the configuration's metricsBindAddress (:10251).",
    "runtime-proxy": "`/metrics` of `--addr` (off by default).",
    "every role": "`/metrics/slis` beside each `/metrics`.",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A metric: `name` as it is scraped, without the endings of histograms."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


def _of_collector(collector: object) -> Iterator[Entry]:
    """Entries of one collector of the client library, or of one of ours that yields families."""
    kind, name = getattr(collector, "_type", None), getattr(collector, "_name", None)
    if isinstance(kind, str) and isinstance(name, str):
        labels, text = tuple(getattr(collector, "_labelnames", ())), str(getattr(collector, "_documentation", ""))
        yield Entry(name + "_total" if kind == "counter" else name, kind, labels, text)
        return
    for family in collector.collect():  # type: ignore[attr-defined]
        named = tuple(getattr(family, "_labelnames", ())) or tuple(label for sample in family.samples for label in sample.labels)
        named = tuple(label for label in dict.fromkeys(named) if label != "le")
        counted = family.type == "counter"
        yield Entry(family.name + "_total" if counted else family.name, common.shown_type(family), named, family.documentation)


def entries(registry: CollectorRegistry) -> list[Entry]:
    """Everything in a registry, by name."""
    found = {entry.name: entry for collector in registry._collector_to_names for entry in _of_collector(collector)}
    return [found[name] for name in sorted(found)]


class _Nothing:
    """An informer factory that watches one kind."""

    def ages(self) -> dict[str, float]:
        return {"pods": 0.0}

    def stalls(self) -> dict[str, int]:
        return {"pods": 0}


def _common(role: str) -> CollectorRegistry:
    registry = common.registry(role)
    common.client_observer(registry, "https://api:6443")
    common.watch_recorder(registry, Recorder(role))
    common.watch_caches(registry, _Nothing())
    common.watch_events(registry, tuple)
    return registry


def _scheduler(registry: CollectorRegistry) -> None:
    registry.register(common.Collected(lambda: standing({}, {}, 0, (), leads=False, lease="")))  # type: ignore[arg-type]
    AuditMetrics(registry, ["priority"])
    registry.register(common.Collected(lambda: pod_resources(())))  # type: ignore[arg-type]


def _filled(registry: CollectorRegistry, *fills: Callable[[CollectorRegistry], object]) -> list[Entry]:
    for fill in fills:
        fill(registry)
    return entries(registry)


def _koordlet() -> list[Entry]:
    own = [
        Entry(family.name, family.kind, (*family.labels, *(("node",) if family.with_node else ())), family.help)
        for family in KoordletMetrics("node").families()
    ]
    shared = common.registry("koordlet")
    common.watch_recorder(shared, Recorder("koordlet"))
    common.watch_caches(shared, _Nothing())
    found = {entry.name: entry for entry in (*own, *entries(shared))}
    return [found[name] for name in sorted(found)]


ROLES: Mapping[str, Callable[[], Iterable[Entry]]] = {
    "scheduler": lambda: _filled(
        _common("scheduler"), SchedulerMetrics, _scheduler, GangMetrics, QuotaMetrics, PlanMetric, ReservationMetrics
    ),
    "manager": lambda: _filled(_common("manager"), ManagerMetrics),
    "koordlet": _koordlet,
    "descheduler": lambda: _filled(_common("descheduler"), DeschedulerMetrics, MigrationMetrics),
    "runtime-proxy": lambda: _filled(common.registry("runtime-proxy"), ProxyMetrics),
    "every role": lambda: entries(Slis(Health()).registry),
}


def render() -> str:
    """The page."""
    intro = (
        "Metrics of each role in Prometheus' text format; OpenMetrics where it is accepted. Names of Kubernetes and of Koordinator are "
        "theirs, units too. A histogram's series end in `_bucket`, `_sum` and `_count`. Series with labels appear with their first value."
    )
    sections = []
    for role, collect in ROLES.items():
        rows = [(code(one.name), one.kind, ", ".join(map(code, one.labels)), one.text) for one in collect()]
        sections += [f"## {role}", _PATHS[role], table(("Metric", "Type", "Labels", "Meaning"), rows)]
    return page("Metrics", intro, sections)
