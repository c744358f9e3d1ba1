"""Metrics of the runtime proxy; upstream has none. Labels hold no object names, so that their number is bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter, Histogram

_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)


class Uncounted:
    """What a process without an HTTP port counts: nothing. The library that counts takes 4 MiB."""

    def request(self, method: str, code: str, seconds: float) -> None:
        """A call has ended after so many seconds."""

    def hook(self, hook_type: str, server: str, result: str) -> None:
        """A hook server was asked."""

    def store(self, pods: int, containers: int) -> None:
        """So many pods and containers are known."""

    def reloaded(self) -> None:
        """The registrations have changed."""


class Metrics(Uncounted):
    """One set a process, in the registry that its HTTP port serves."""

    def __init__(self, registry: CollectorRegistry) -> None:
        from prometheus_client import Counter, Gauge, Histogram

        self.registry = registry
        self._of_call: dict[tuple[str, str], tuple[Counter, Histogram]] = {}
        self._requests = Counter(
            "koord_runtime_proxy_requests", "Calls by method and gRPC code or HTTP status.", ("method", "code"), registry=self.registry
        )
        self._seconds = Histogram(
            "koord_runtime_proxy_request_duration_seconds",
            "Seconds of a call, runtime and hooks included.",
            ("method",),
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._hooks = Counter(
            "koord_runtime_proxy_hooks", "Hook calls by type, server file and result.", ("hook", "server", "result"), registry=self.registry
        )
        self._store = Gauge("koord_runtime_proxy_store_objects", "Pods and containers that are known.", ("kind",), registry=self.registry)
        self._reloads = Counter("koord_runtime_proxy_registration_reloads", "Changes of the hook registrations.", registry=self.registry)

    def request(self, method: str, code: str, seconds: float) -> None:
        found = self._of_call.get((method, code))
        if found is None:  # kept: looking labels up costs more than counting
            found = self._of_call[method, code] = (self._requests.labels(method, code), self._seconds.labels(method))
        found[0].inc()
        found[1].observe(seconds)

    def hook(self, hook_type: str, server: str, result: str) -> None:
        self._hooks.labels(hook_type, server, result).inc()

    def store(self, pods: int, containers: int) -> None:
        self._store.labels("pod").set(pods)
        self._store.labels("container").set(containers)

    def reloaded(self) -> None:
        self._reloads.inc()
