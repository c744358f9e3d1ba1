"""Who asks the API server."""

from __future__ import annotations

from dataclasses import dataclass

from koord.apiserver.store import Obj


@dataclass(slots=True)
class User:
    """Who asks: what webhooks see as userInfo."""

    name: str = "system:anonymous"
    groups: tuple[str, ...] = ("system:unauthenticated",)
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def wire(self) -> Obj:
        more = {"uid": self.uid, "extra": {key: list(values) for key, values in self.extra}}
        return {"username": self.name, "groups": list(self.groups), **{key: value for key, value in more.items() if value}}


ACCOUNT = "system:serviceaccount:"


def account_groups(namespace: str) -> tuple[str, ...]:
    """The groups of the service accounts of a namespace."""
    return ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")


ADMIN = User("admin", ("system:masters", "system:authenticated"), "admin")
