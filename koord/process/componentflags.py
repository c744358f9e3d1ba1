"""Flags that components of Kubernetes have in common: HTTPS, and leader election."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from koord.process.flags import CommaList, IPAddress, bool_option, duration_option

F = TypeVar("F", bound=Callable[..., Any])
Option = Callable[[Any], Any]

_LEASE_FIELDS = ("lease_duration", "renew_deadline", "retry_period", "resource_lock", "resource_name", "resource_namespace")
LEASE: Final = {"leader_elect": "leader_elect", **{f"leader_elect_{field}": field for field in _LEASE_FIELDS}}
"""Fields of a configuration's leaderElection by the flags that overlay them."""
_TLS_VERSIONS = ("VersionTLS12", "VersionTLS13")


def together(*options: Option) -> Callable[[F], F]:
    """One decorator for several options."""

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def https_options(port: int) -> Callable[[F], F]:
    """The HTTPS listener; `port` is the default one, 0 for none."""
    return together(
        click.option(
            "--secure-port", type=click.IntRange(0, 65535), default=port, show_default=True, help="Port of the HTTPS listener; 0: none."
        ),
        click.option("--bind-address", type=IPAddress, default="0.0.0.0", show_default=True, help="IP address of the HTTPS listener."),
        click.option("--cert-dir", metavar="DIR", default="", help="Where a certificate made by this process is kept."),
        click.option("--tls-cert-file", metavar="FILE", default="", help="Certificate to serve HTTPS with; without it one is made."),
        click.option("--tls-private-key-file", metavar="FILE", default="", help="Its key."),
        click.option("--tls-min-version", type=click.Choice(_TLS_VERSIONS), default=_TLS_VERSIONS[0], help="Lowest TLS version."),
        click.option("--tls-cipher-suites", type=CommaList, default="", help="TLS 1.2 cipher suites by their IANA names."),
    )


def leader_election_options(name: str, namespace: str, help: str) -> Callable[[F], F]:
    """Leader election; `name` and `namespace` are the defaults of the Lease, `help` says what only its holder does."""
    return together(
        bool_option("--leader-elect", default=True, help=help),
        duration_option("--leader-elect-lease-duration", default="15s", help="How long a lease lives."),
        duration_option("--leader-elect-renew-deadline", default="10s", help="How long the holder tries to renew it."),
        duration_option("--leader-elect-retry-period", default="2s", help="Pause between tries."),
        click.option("--leader-elect-resource-lock", default="leases", show_default=True, help="Kind of lock."),
        click.option("--leader-elect-resource-name", default=name, show_default=True, help="Name of the Lease."),
        click.option("--leader-elect-resource-namespace", default=namespace, show_default=True, help="Namespace of the Lease."),
    )
