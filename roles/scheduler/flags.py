"""Flags that kube-scheduler and upstream have beside the scheduler's own, in groups (SCH-FW-02).

A flag either acts or stands in `INERT`, with the reason why it has nothing to act on; giving one of those is logged.
"""

from __future__ import annotations

import click

from koord.process.componentflags import https_options, together
from koord.process.flags import Bool, Duration, always_allow_option, bool_option, duration_option
from koord.process.inert import COMPONENT_BASE, Inert

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


serving_options = together(
    https_options(0),
    click.option("--client-ca-file", metavar="FILE", default="", help="Authority of client certificates."),
    click.option("--authentication-kubeconfig", metavar="FILE", default="", help="API server that reviews tokens."),
    bool_option("--authentication-skip-lookup", help="Do not read the client authority from the cluster."),
    bool_option("--authentication-tolerate-lookup-failure", default=True, help="Start even if it cannot be read."),
    duration_option("--authentication-token-webhook-cache-ttl", default="10s", help="How long a token review holds."),
    click.option("--authorization-kubeconfig", metavar="FILE", default="", help="API server that reviews access."),
    always_allow_option,
    duration_option("--authorization-webhook-cache-authorized-ttl", default="10s", help="How long a yes holds."),
    duration_option("--authorization-webhook-cache-unauthorized-ttl", default="10s", help="How long a no holds."),
)
"""HTTPS, and who may ask there."""


client_options = together(
    click.option("--kube-api-qps", type=float, default=50.0, help="Requests a second to the API server; without --config only."),
    click.option("--kube-api-burst", type=click.IntRange(0), default=100, help="Burst of them; without --config only."),
    bool_option("--profiling", help="Serve /debug/tasks and /debug/flags; without --config only."),
)
"""kube-scheduler's deprecated flags, which count only where no --config is given."""


def metric_labels(pairs: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """`name=pod label key` pairs. Raises ValueError for what is none, or names no metric label."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, sign, key = pair.partition("=")
        if not sign or not key or not name.isidentifier() or name in ("priority", "event_type", "outcome") or name in found:
            raise ValueError(f"{pair!r} is no new metric label; accepted: name=pod-label-key,…")
        found[name] = key
    return tuple(found.items())


def controller_wanted(name: str, plugins: tuple[str, ...]) -> bool:
    """Whether a plugin may run controllers: the first explicit match wins, otherwise `*` decides."""
    for entry in plugins:
        if entry in (name, f"-{name}"):
            return entry == name
    return "*" in plugins
