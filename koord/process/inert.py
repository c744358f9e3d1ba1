"""Flags that other components of a cluster have and that have nothing to act on here: accepted, so that existing command lines work.

Giving one that asks for something is logged with the reason why nothing happens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from koord.process.flags import Bool, Duration

F = TypeVar("F", bound=Callable[..., Any])

Inert = Mapping[str, tuple[Any, str]]
"""Name of the flag -> (kind of value, why it has no effect)."""

_HTTP1 = "HTTP/1.1 is served"
_METRICS = "the set of metrics is fixed"
_LOGS = "log lines are written at once, each to one stream"

COMPONENT_BASE: Inert = {
    "http2-max-streams-per-connection": (int, _HTTP1),
    "disable-http2-serving": (Bool, _HTTP1),
    "tls-sni-cert-key": (str, "one certificate is served, that of --tls-cert-file"),
    "permit-address-sharing": (Bool, "addresses in TIME_WAIT can always be listened on again"),
    "permit-port-sharing": (Bool, "a port is listened on by one process"),
    "allow-metric-labels": (str, _METRICS),
    "allow-metric-labels-manifest": (str, _METRICS),
    "disabled-metrics": (str, _METRICS),
    "show-hidden-metrics-for-version": (str, _METRICS),
    "log-flush-frequency": (Duration, _LOGS),
    "log-json-info-buffer-size": (str, _LOGS),
    "log-json-split-stream": (Bool, _LOGS),
    "log-text-info-buffer-size": (str, _LOGS),
    "log-text-split-stream": (Bool, _LOGS),
}
"""What every component has for serving, metrics and logs."""


def inert_options(table: Inert) -> Callable[[F], F]:
    """Decorator that accepts the flags of a table; they come as keyword arguments and are looked at by `inert_given` only."""

    def decorate(function: F) -> F:
        decorated: Any = function
        for name, (kind, why) in reversed(list(table.items())):
            decorated = click.option(f"--{name}", type=kind, default=None, hidden=True, help=f"Accepted; no effect: {why}.")(decorated)
        result: F = decorated
        return result

    return decorate


def inert_given(table: Inert, given: Mapping[str, Any]) -> list[str]:
    """A line for each given flag that has no effect; `given` by parameter name. One that asks for nothing ("", false) is passed over."""
    return [f"--{name} has no effect: {why}" for name, (_, why) in table.items() if given.get(name.replace("-", "_"))]
