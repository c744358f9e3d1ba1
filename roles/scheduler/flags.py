"""Flags that kube-scheduler and upstream have beside the scheduler's own, in groups (SCH-FW-02).

A flag either acts or stands in `INERT`, with the reason why it has nothing to act on; giving one of those is logged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from koord.process.flags import Bool, CommaList, Duration, IPAddress, always_allow_option, bool_option, duration_option
from koord.process.inert import COMPONENT_BASE, Inert

F = TypeVar("F", bound=Callable[..., Any])
Option = Callable[[Any], Any]

TLS_VERSIONS = ("VersionTLS12", "VersionTLS13")

_FRONT_PROXY = "front proxies are not trusted; clients show a token or a certificate of their own"

INERT: Inert = {
    "requestheader-allowed-names": (str, _FRONT_PROXY),
    "requestheader-client-ca-file": (str, _FRONT_PROXY),
    "requestheader-extra-headers-prefix": (str, _FRONT_PROXY),
    "requestheader-group-headers": (str, _FRONT_PROXY),
    "requestheader-uid-headers": (str, _FRONT_PROXY),
    "requestheader-username-headers": (str, _FRONT_PROXY),
    **COMPONENT_BASE,
    "contention-profiling": (Bool, "there are no locks to contend for"),
    "kube-api-content-type": (str, "JSON is spoken to the API server"),
    "emulated-version": (str, "one version is behaved as"),
    "scheduling-drop-unhandled-timeout": (Duration, "a popped pod is scheduled at once: there is none to drop"),
}


def _apply(function: F, options: tuple[Option, ...]) -> F:
    decorated: Any = function
    for option in reversed(options):
        decorated = option(decorated)
    result: F = decorated
    return result


def serving_options(function: F) -> F:
    """HTTPS, and who may ask there."""
    return _apply(
        function,
        (
            click.option(
                "--secure-port", type=click.IntRange(0, 65535), default=0, show_default=True, help="Port of the HTTPS listener; 0: none."
            ),
            click.option("--bind-address", type=IPAddress, default="0.0.0.0", show_default=True, help="IP address of the HTTPS listener."),
            click.option("--cert-dir", metavar="DIR", default="", help="Where a certificate made by this process is kept."),
            click.option("--tls-cert-file", metavar="FILE", default="", help="Certificate to serve HTTPS with; without it one is made."),
            click.option("--tls-private-key-file", metavar="FILE", default="", help="Its key."),
            click.option("--tls-min-version", type=click.Choice(TLS_VERSIONS), default=TLS_VERSIONS[0], help="Lowest TLS version."),
            click.option("--tls-cipher-suites", type=CommaList, default="", help="TLS 1.2 cipher suites by their IANA names."),
            click.option("--client-ca-file", metavar="FILE", default="", help="Authority of client certificates."),
            click.option("--authentication-kubeconfig", metavar="FILE", default="", help="API server that reviews tokens."),
            bool_option("--authentication-skip-lookup", help="Do not read the client authority from the cluster."),
            bool_option("--authentication-tolerate-lookup-failure", default=True, help="Start even if it cannot be read."),
            duration_option("--authentication-token-webhook-cache-ttl", default="10s", help="How long a token review holds."),
            click.option("--authorization-kubeconfig", metavar="FILE", default="", help="API server that reviews access."),
            always_allow_option,
            duration_option("--authorization-webhook-cache-authorized-ttl", default="10s", help="How long a yes holds."),
            duration_option("--authorization-webhook-cache-unauthorized-ttl", default="10s", help="How long a no holds."),
        ),
    )


def client_options(function: F) -> F:
    """kube-scheduler's deprecated flags, which count only where no --config is given."""
    return _apply(
        function,
        (
            click.option("--kube-api-qps", type=float, default=50.0, help="Requests a second to the API server; without --config only."),
            click.option("--kube-api-burst", type=click.IntRange(0), default=100, help="Burst of them; without --config only."),
            bool_option("--profiling", help="Serve /debug/tasks and /debug/flags; without --config only."),
        ),
    )


def plugin_options(function: F) -> F:
    """What plugins may do in the background."""
    return _apply(
        function,
        (
            click.option(
                "--controller-plugins", type=CommaList, default="*", show_default=True,
                help="Plugins whose controllers run: Name, -Name, * for all others.",
            ),
            bool_option("--enable-network-topology-manager", help="Build the network topology tree."),
            click.option(
                "--verify-plugins", type=click.IntRange(0), default=1000, show_default=True,
                help="Every N decisions, compare all plugins with their cached results; one that differs is evaluated per pod. 0: never.",
            ),
        ),
    )  # fmt: skip


def debug_options(function: F) -> F:
    """What is watched and logged about cycles."""
    return _apply(
        function,
        (
            click.option("--debug-scores", "-s", type=click.IntRange(0), default=0, help="Log the scores of the top N nodes."),
            bool_option("--debug-filters", "-f", help="Log what filters refuse."),
            bool_option("--debug-diagnosis", "-d", help="Dump a diagnosis of each failed cycle as JSON."),
            bool_option("--debug-diagnosis-blocking", help="Dump it inside the cycle."),
            click.option("--debug-diagnosis-queue-size", type=click.IntRange(1), default=1000, help="Diagnoses that may wait."),
            click.option("--debug-diagnosis-worker-count", type=click.IntRange(1), default=10, help="Writers of diagnoses."),
            duration_option("--scheduler-monitor-period", default="10s", help="How often slow pods are looked for."),
            duration_option("--scheduling-timeout", default="30s", help="A pod that takes longer to place is reported."),
        ),
    )


def auditor_options(function: F) -> F:
    """The workload auditor."""
    return _apply(
        function,
        (
            bool_option("--enable-workload-auditor", help="Follow each workload until it is scheduled."),
            duration_option("--workload-auditor-victim-reschedule-duration", default="10s", help="Alert: from victims gone to scheduled."),
            duration_option("--workload-auditor-victim-deletion-duration", default="30s", help="Alert: victims take longer to go."),
            click.option("--workload-auditor-victim-deleting-retries", type=click.IntRange(0), default=3, help="Alert: so many attempts."),
            duration_option("--workload-auditor-scheduling-event-interval", default="5m", help="Alert: nothing happened for so long."),
            click.option("--workload-auditor-metric-labels", type=CommaList, default="", help="Metric labels: name=pod label key,…"),
        ),
    )


def metric_labels(pairs: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """`name=pod label key` pairs. Raises ValueError for what is none, or names no metric label."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, sign, key = pair.partition("=")
        if not sign or not key or not name.isidentifier() or name in ("priority", "event_type", "outcome") or name in found:
            raise ValueError(f"{pair!r} is no new metric label; accepted: name=pod-label-key,…")
        found[name] = key
    return tuple(found.items())


def barrier_options(function: F) -> F:
    """The pod of the sync barrier (gate SyncBarrier)."""
    return _apply(
        function,
        (
            click.option("--sync-barrier-pod-namespace", default="kube-system", show_default=True, help="Namespace of the barrier pod."),
            click.option(
                "--sync-barrier-pod-name", default="koord-scheduler-sync-barrier", show_default=True, help="Name of the barrier pod."
            ),
            duration_option("--sync-hard-timeout", default="1m", help="Longest wait at the barrier."),
        ),
    )


def controller_wanted(name: str, plugins: tuple[str, ...]) -> bool:
    """Whether a plugin may run controllers: the first explicit match wins, otherwise `*` decides."""
    for entry in plugins:
        if entry in (name, f"-{name}"):
            return entry == name
    return "*" in plugins
