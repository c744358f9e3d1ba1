"""Acting as somebody else: the Impersonate-* headers, and who may use them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from koord.apiserver.errors import bad_request, forbidden
from koord.apiserver.rbac import Attributes
from koord.apiserver.rest.context import User

if TYPE_CHECKING:
    from koord.apiserver.rbac import Authorizer

_ACCOUNT = "system:serviceaccount:"


def effective(user: User, headers: Mapping[str, str], authorizer: Authorizer | None) -> User:
    """The user that the request counts as. Raises 400 for groups without a user, 403 for what `user` may not impersonate."""
    name, groups = headers.get("Impersonate-User", ""), _all(headers, "Impersonate-Group")
    if not name:
        if groups or headers.get("Impersonate-Uid"):
            raise bad_request("requested impersonation without impersonating a user")
        return user
    for wanted in (_user(name), *(Attributes("impersonate", "", "groups", name=group) for group in groups)):
        if authorizer is not None and not authorizer.allows(user, wanted):
            raise forbidden(wanted.resource, wanted.group, wanted.name, authorizer.reason(user, wanted))
    return User(name, tuple(groups) if groups else _groups(name), headers.get("Impersonate-Uid", ""))


def _all(headers: Mapping[str, str], name: str) -> list[str]:
    getall: Any = getattr(headers, "getall", None)
    return list(getall(name, ())) if getall is not None else [value for key, value in headers.items() if key == name]


def _user(name: str) -> Attributes:
    """Service accounts are impersonated as such, everybody else as a user."""
    if name.startswith(_ACCOUNT):
        namespace, _, account = name[len(_ACCOUNT) :].partition(":")
        return Attributes("impersonate", "", "serviceaccounts", namespace=namespace, name=account)
    return Attributes("impersonate", "", "users", name=name)


def _groups(name: str) -> tuple[str, ...]:
    """The groups that come with a name when none are asked for."""
    if name.startswith(_ACCOUNT):
        namespace = name[len(_ACCOUNT) :].partition(":")[0]
        return ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
    return ("system:unauthenticated",) if name == "system:anonymous" else ("system:authenticated",)
