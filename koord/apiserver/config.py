"""Settings of the embedded API server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

AUTHORIZATION_MODES = ("AlwaysAllow", "RBAC")


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """How the server behaves. Defaults suit tests; the command line sets what a person wants."""

    # bearer token of the administrator; "" lets everybody in
    token: str = ""
    # "AlwaysAllow", or "RBAC" for what the stored Roles and bindings say
    authorization_mode: str = "AlwaysAllow"
    disabled_plugins: frozenset[str] = frozenset()
    enabled_plugins: frozenset[str] = frozenset()
    # controllers that run in the server; see `controllers/registry.py`
    disabled_controllers: frozenset[str] = frozenset()
    enabled_controllers: frozenset[str] = frozenset()
    # the state is kept here, if set
    data_dir: Path | None = None
    # seconds between the bookmarks of a watch that asked for them
    bookmark_seconds: float = 60.0
    # seconds that events live
    event_ttl: float = 3600.0
    # what a webhook that names a Service meets when nothing resolves it: "ignore" lets the request pass, "fail" obeys failurePolicy
    unresolvable_webhooks: str = "ignore"
    # host:port by "namespace/name" of a Service, for webhooks that name one
    webhook_services: dict[str, str] = field(default_factory=dict)
    # the file that a container writes its output to, by namespace, pod and container; without it `pods/log` is not there
    pod_log: Callable[[str, str, str], Path | None] | None = None
    # managedFields: "always" on every write, "apply" only on objects that server-side apply has touched, "auto" the second for the
    # kinds that are written most (pods, events, leases) and the first for all others
    managed_fields: str = "auto"

    def __post_init__(self) -> None:
        """Raises ValueError: another mode must not let everybody in."""
        if self.authorization_mode not in AUTHORIZATION_MODES:
            raise ValueError(f"authorization mode {self.authorization_mode!r} is none of {', '.join(AUTHORIZATION_MODES)}")
