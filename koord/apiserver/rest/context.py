"""What a request asks for beside its object."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Obj = dict[str, Any]


def flag(query: dict[str, str], key: str) -> bool:
    """A boolean parameter: given and neither "false" nor "0", as kube-apiserver reads it."""
    return key in query and query[key].lower() not in ("false", "0")


@dataclass(slots=True)
class User:
    """Who asks: what webhooks see as userInfo."""

    name: str = "system:anonymous"
    groups: tuple[str, ...] = ("system:unauthenticated",)
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def wire(self) -> Obj:
        out: Obj = {"username": self.name, "groups": list(self.groups)}
        if self.uid:
            out["uid"] = self.uid
        if self.extra:
            out["extra"] = {key: list(values) for key, values in self.extra}
        return out


ADMIN = User("admin", ("system:masters", "system:authenticated"), "admin")
SYSTEM = User("system:apiserver", ("system:masters", "system:authenticated"))


@dataclass(slots=True)
class Options:
    """Options of a write."""

    user: User = field(default_factory=lambda: ADMIN)
    dry_run: bool = False
    # "Strict", "Warn" or "Ignore"
    field_validation: str = "Warn"
    field_manager: str = ""
    user_agent: str = ""
    # server-side apply: take fields over from other managers
    force: bool | None = None
    # the managers of an object that an apply creates
    applied: list[Any] | None = None
    # texts for `Warning` headers
    warnings: list[str] = field(default_factory=list)

    def manager(self) -> str:
        """The field manager: as given, else the user agent up to its first slash, as kube-apiserver does."""
        return self.field_manager or self.user_agent.split("/", 1)[0][:128] or "unknown"


@dataclass(slots=True)
class DeleteOptions:
    """The body of a DELETE."""

    grace_period_seconds: int | None = None
    # "Background", "Foreground", "Orphan" or "" for the default of the resource
    propagation: str = ""
    precondition_uid: str = ""
    precondition_rv: str = ""
    dry_run: bool = False
    wire: Obj = field(default_factory=dict)
