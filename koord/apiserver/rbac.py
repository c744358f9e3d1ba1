"""Role-based access control over the Roles and bindings that the server holds, as kube-apiserver's RBAC authorizer decides.

Members of `system:masters` may do everything. Whatever no rule allows is refused. What was asked and which rule allowed it can be
recorded, so that a test can say which rules a role needs.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from koord import seams
from koord.apiserver.errors import bad_request, forbidden
from koord.apiserver.rest.context import ADMIN, User
from koord.apiserver.store import Obj, Store

if TYPE_CHECKING:
    from koord.apiserver.rest.context import User


class Tokens:
    """Bearer tokens. Without an administrator's token everybody is the administrator."""

    def __init__(self, admin: str = "") -> None:
        self.admin = admin
        self._issued: dict[str, tuple[User, float]] = {}

    def issue(self, token: str, name: str, namespace: str, expires: float, extra: Mapping[str, str]) -> None:
        """Remember a service account's token until `expires` (Unix seconds); `extra` says more of who uses it."""
        now = seams.now()
        for old in [t for t, (_, until) in self._issued.items() if until < now]:
            del self._issued[old]
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
        known = tuple((key, (value,)) for key, value in extra.items())
        self._issued[token] = (User(name, groups, extra=known), expires)

    def user(self, authorization: str | None) -> User | None:
        """The user behind an Authorization header; None when it is not good enough."""
        token = ""
        if authorization and authorization[:7].lower() == "bearer ":
            token = authorization[7:].strip()
        if token and self._issued:
            found = self._issued.get(token)
            if found is not None and found[1] > seams.now():
                return found[0]
        if not self.admin:
            return ADMIN
        return ADMIN if token and hmac.compare_digest(token.encode(), self.admin.encode()) else None

    def review(self, token: str) -> User | None:
        """The user that a TokenReview asks for."""
        return self.user(f"Bearer {token}") if token else None


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


MASTERS = "system:masters"
_GROUP = "rbac.authorization.k8s.io"
_BUCKETS = tuple(f"{_GROUP}/{plural}" for plural in ("clusterroles", "clusterrolebindings", "roles", "rolebindings"))
_ALWAYS_ALLOWED = ("/api", "/apis", "/healthz", "/livez", "/openapi", "/readyz", "/version")
"""Non-resource URLs that kube-apiserver's `system:discovery` and `system:public-info-viewer` open to everybody who is authenticated."""
_SELF_REVIEWS = frozenset(("selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews"))


class Attributes(NamedTuple):
    """What is asked for. `path` is set instead of the resource fields for non-resource URLs."""

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""

    @property
    def full_resource(self) -> str:
        """`pods/status`, as rules spell it."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


@dataclass(frozen=True, slots=True)
class Allowance:
    """The rule that allows a request: its role, and its place in the role's list."""

    role: str
    index: int
    binding: str


class Authorizer:
    """Decides by what is stored now. `denied` and `used` collect what was refused and which rules were needed, by user."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.denied: set[tuple[str, Attributes]] = set()
        self.used: set[tuple[str, Allowance]] = set()

    def allows(self, user: User, wanted: Attributes) -> bool:
        """Whether the user may; the decision is recorded."""
        if MASTERS in user.groups or _everybody(wanted):
            return True
        allowance = self.find(user, wanted)
        if allowance is None:
            self.denied.add((user.name, wanted))
            return False
        self.used.add((user.name, allowance))
        return True

    def would_allow(self, user: User, wanted: Attributes) -> bool:
        """Whether the user may; nothing is recorded."""
        return MASTERS in user.groups or _everybody(wanted) or self.find(user, wanted) is not None

    def find(self, user: User, wanted: Attributes) -> Allowance | None:
        """The first rule that allows a request, None if there is none."""
        for binding, role, rules in self._bound(user, wanted.namespace):
            for index, rule in enumerate(rules):
                if _covers(rule, wanted):
                    return Allowance(role, index, binding)
        return None

    def reason(self, user: User, wanted: Attributes) -> str:
        """Why a request is refused, in kube-apiserver's words."""
        if wanted.path:
            return f'User "{user.name}" cannot {wanted.verb} path "{wanted.path}"'
        where = f' in the namespace "{wanted.namespace}"' if wanted.namespace else " at the cluster scope"
        return f'User "{user.name}" cannot {wanted.verb} resource "{wanted.full_resource}" in API group "{wanted.group}"{where}'

    def rules(self, user: User, namespace: str) -> list[Obj]:
        """All rules that hold for a user in a namespace."""
        return [rule for _, _, rules in self._bound(user, namespace) for rule in rules]

    def _bound(self, user: User, namespace: str) -> Iterator[tuple[str, str, list[Obj]]]:
        cluster_roles, cluster_bindings, roles, bindings = (self._store.bucket(name) for name in _BUCKETS)
        for entry in cluster_bindings.select(None):
            if _subjects(entry.obj, user):
                found = cluster_roles.get("", entry.obj["roleRef"]["name"])
                if found is not None:
                    yield f"ClusterRoleBinding/{entry.name}", f"ClusterRole/{found.name}", found.obj.get("rules") or []
        if not namespace:
            return
        for entry in bindings.select(namespace):
            if not _subjects(entry.obj, user):
                continue
            reference = entry.obj["roleRef"]
            cluster_wide = reference.get("kind") == "ClusterRole"
            found = cluster_roles.get("", reference["name"]) if cluster_wide else roles.get(namespace, reference["name"])
            if found is not None:
                kind = "ClusterRole" if cluster_wide else f"Role/{namespace}"
                yield f"RoleBinding/{namespace}/{entry.name}", f"{kind}/{found.name}", found.obj.get("rules") or []


def _everybody(wanted: Attributes) -> bool:
    if wanted.path:
        return any(wanted.path == path or wanted.path.startswith(f"{path}/") for path in _ALWAYS_ALLOWED)
    return wanted.verb == "create" and wanted.resource in _SELF_REVIEWS


def _subjects(binding: Obj, user: User) -> bool:
    for subject in binding.get("subjects") or ():
        kind, name = subject.get("kind"), subject.get("name")
        if kind == "User" and name == user.name:
            return True
        if kind == "Group" and name in user.groups:
            return True
        if kind == "ServiceAccount" and user.name == f"system:serviceaccount:{subject.get('namespace')}:{name}":
            return True
    return False


def _covers(rule: Obj, wanted: Attributes) -> bool:
    if not covers(rule.get("verbs"), wanted.verb):
        return False
    if wanted.path:
        return any(
            pattern in ("*", wanted.path) or (pattern.endswith("*") and wanted.path.startswith(pattern[:-1]))
            for pattern in rule.get("nonResourceURLs") or ()
        )
    if not covers(rule.get("apiGroups"), wanted.group):
        return False
    resources = rule.get("resources") or ()
    if not covers(resources, wanted.full_resource) and not (wanted.subresource and f"*/{wanted.subresource}" in resources):
        return False
    names = rule.get("resourceNames") or ()
    return not names or wanted.name in names


def covers(values: Any, wanted: str) -> bool:
    """Whether a rule's list names a value, or all."""
    return "*" in (values or ()) or wanted in (values or ())


def verb_of(method: str, *, name: str, watch: bool) -> str:
    """The verb of a request on a resource."""
    if method in ("GET", "HEAD"):
        return "watch" if watch else "get" if name else "list"
    if method == "DELETE":
        return "delete" if name else "deletecollection"
    return {"POST": "create", "PUT": "update", "PATCH": "patch"}.get(method, method.lower())


def selected_name(field_selector: str) -> str:
    """The one name that a field selector asks for, "" when it does not."""
    for part in field_selector.split(","):
        key, sign, value = part.partition("=")
        if key.strip() == "metadata.name" and sign:
            return value.removeprefix("=").strip()
    return ""


def of_review(spec: Obj) -> Attributes:
    """What a SubjectAccessReview asks about."""
    other = spec.get("nonResourceAttributes")
    if other:
        return Attributes(other.get("verb") or "", path=other.get("path") or "")
    asked = spec.get("resourceAttributes") or {}
    return Attributes(*(asked.get(part) or "" for part in ("verb", "group", "resource", "subresource", "namespace", "name")))
