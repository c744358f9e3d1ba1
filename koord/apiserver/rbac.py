"""Role-based access control over the Roles and bindings that the server holds, as kube-apiserver's RBAC authorizer decides.

Members of `system:masters` may do everything. Whatever no rule allows is refused. What was asked and which rule allowed it can be
recorded, so that a test can say which rules a role needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from koord.apiserver.errors import bad_request, forbidden, not_found
from koord.apiserver.store import Entry, Obj, Store
from koord.apiserver.users import ACCOUNT, User, account_groups

if TYPE_CHECKING:
    from koord.apiserver.resources import Resource


_AUTHENTICATION, _EXTRA = "authentication.k8s.io", "impersonate-extra-"
_ANONYMOUS, AUTHENTICATED, _UNAUTHENTICATED = "system:anonymous", "system:authenticated", "system:unauthenticated"


def effective(user: User, headers: Mapping[str, str], authorizer: Authorizer | None) -> User:
    """The user that the request counts as. Raises 400 for more of a user than the name alone, 403 for what `user` may not impersonate."""
    name, groups, uid = headers.get("Impersonate-User", ""), _all(headers, "Impersonate-Group"), headers.get("Impersonate-Uid", "")
    extra = {key: _all(headers, spelt) for spelt in headers if (key := _extra_key(spelt))}
    if not name:
        if groups or uid or extra:
            raise bad_request("requested impersonation without impersonating a user name")
        return user
    asked = [_user(name), *(Attributes("impersonate", "", "groups", name=group) for group in groups)]
    asked += [Attributes("impersonate", _AUTHENTICATION, "uids", name=uid)] if uid else []
    asked += [
        Attributes("impersonate", _AUTHENTICATION, "userextras", key, name=value) for key, values in extra.items() for value in values
    ]
    for wanted in asked:
        if authorizer is not None:
            authorizer.check(user, wanted)
    if groups and name != _ANONYMOUS and not {AUTHENTICATED, _UNAUTHENTICATED} & {*groups}:
        groups.append(AUTHENTICATED)
    return User(name, tuple(groups) or _groups(name), uid, tuple((key, tuple(values)) for key, values in extra.items()))


def _extra_key(header: str) -> str:
    """The key of which a header gives a value, "" for other headers."""
    prefix, key = header[: len(_EXTRA)], header[len(_EXTRA) :]
    return unquote(key).lower() if prefix.lower() == _EXTRA else ""


def _all(headers: Mapping[str, str], name: str) -> list[str]:
    getall: Any = getattr(headers, "getall", None)
    return list(getall(name, ())) if getall is not None else [value for key, value in headers.items() if key == name]


def _user(name: str) -> Attributes:
    """Service accounts are impersonated as such, everybody else as a user."""
    if account := _account(name):
        return Attributes("impersonate", "", "serviceaccounts", namespace=account[0], name=account[1])
    return Attributes("impersonate", "", "users", name=name)


def _groups(name: str) -> tuple[str, ...]:
    """The groups that come with a name when none are asked for."""
    if account := _account(name):
        return account_groups(account[0])
    return (_UNAUTHENTICATED if name == _ANONYMOUS else AUTHENTICATED,)


def _account(name: str) -> tuple[str, str] | None:
    """(namespace, name) of a service account, by its user name."""
    namespace, colon, account = name.removeprefix(ACCOUNT).partition(":")
    return (namespace, account) if name.startswith(ACCOUNT) and colon and namespace and account and ":" not in account else None


MASTERS = "system:masters"
_GROUP = "rbac.authorization.k8s.io"
# What kube-apiserver's `system:public-info-viewer` opens to everybody, and its `system:discovery` and `system:basic-user` to everybody
# who is authenticated.
_PUBLIC = ("/healthz", "/livez", "/readyz", "/version")
_DISCOVERY = ("/api", "/apis", "/openapi", *_PUBLIC)
_BASIC_RULES: tuple[Obj, ...] = (
    {"verbs": ["create"], "apiGroups": ["authorization.k8s.io"], "resources": ["selfsubjectaccessreviews", "selfsubjectrulesreviews"]},
    {"verbs": ["create"], "apiGroups": [_AUTHENTICATION], "resources": ["selfsubjectreviews"]},
    {"verbs": ["get"], "nonResourceURLs": [url for path in _DISCOVERY for url in (path, f"{path}/*")]},
)


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
    subject: str = field(default="", compare=False)
    """Whom the binding names."""

    def text(self) -> str:
        """As access reviews print it."""
        kind, *where, name = self.binding.split("/")
        bound = f'{kind} "{"/".join((name, *where))}"'
        role_kind, *_, role = self.role.split("/")
        return f'RBAC: allowed by {bound} of {role_kind} "{role}" to {self.subject}'


_REMEMBERED = 10_000  # refusals
_EVERYTHING: tuple[Obj, ...] = (
    {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]},
    {"verbs": ["*"], "nonResourceURLs": ["*"]},
)


class Authorizer:
    """Decides by what is stored now. `denied` and `used` collect what was refused (as far as that is not too much) and which rules
    were needed, by user."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.denied: set[tuple[str, Attributes]] = set()
        self.used: set[tuple[str, Allowance]] = set()

    def allows(self, user: User, wanted: Attributes) -> bool:
        """Whether the user may; the decision is recorded."""
        if MASTERS in user.groups or _everybody(user, wanted):
            return True
        allowance = self.find(user, wanted)
        if allowance is None:
            if len(self.denied) < _REMEMBERED:  # names are the asker's choice
                self.denied.add((user.name, wanted))
            return False
        self.used.add((user.name, allowance))
        return True

    def check(self, user: User, wanted: Attributes) -> None:
        """Raise 403 for what the user may not; the decision is recorded."""
        if not self.allows(user, wanted):
            raise forbidden(wanted.resource, wanted.group, wanted.name, self._reason(user, wanted))

    def would_allow(self, user: User, wanted: Attributes) -> bool:
        """Whether the user may; nothing is recorded."""
        return MASTERS in user.groups or _everybody(user, wanted) or self.find(user, wanted) is not None

    def find(self, user: User, wanted: Attributes) -> Allowance | None:
        """The first rule that allows a request, None if there is none."""
        for binding, role, subject, rules in self._bound(user, wanted.namespace):
            for index, rule in enumerate(rules):
                if _covers(rule, wanted):
                    return Allowance(role, index, binding, subject)
        return None

    def _reason(self, user: User, wanted: Attributes) -> str:
        """Why a request is refused, in kube-apiserver's words."""
        if wanted.path:
            return f'User "{user.name}" cannot {wanted.verb} path "{wanted.path}"'
        where = f' in the namespace "{wanted.namespace}"' if wanted.namespace else " at the cluster scope"
        return f'User "{user.name}" cannot {wanted.verb} resource "{wanted.full_resource}" in API group "{wanted.group}"{where}'

    def rules(self, user: User, namespace: str) -> list[Obj]:
        """All rules that hold for a user in a namespace."""
        basic = _BASIC_RULES if AUTHENTICATED in user.groups else ()
        return [*(rule for _, _, _, rules in self._bound(user, namespace) for rule in rules), *basic]

    def check_grant(self, user: User, resource: Resource, namespace: str, obj: Obj, old: Obj | None) -> None:
        """Nobody gives rights that he does not have: raise 403 for a role or binding that would. `old` is what it replaces."""
        if resource.group != _GROUP or MASTERS in user.groups:
            return
        name = obj["metadata"].get("name") or ""
        if "roleRef" in obj:
            wanted = Attributes("bind", _GROUP, _plural(obj["roleRef"]), namespace=namespace, name=obj["roleRef"].get("name") or "")
            if self.would_allow(user, wanted):
                return
            found = self._role(obj["roleRef"], namespace)
            if found is None:
                raise not_found(resource.plural, _GROUP, wanted.name)
            rules = found.obj.get("rules") or ()
        else:
            rules = obj.get("rules") or ()
            # a label alone may hand the rules on, to roles that select it
            if old is not None and _handed_on(obj) == _handed_on(old):
                return
            if self.would_allow(user, Attributes("escalate", _GROUP, resource.plural, namespace=namespace, name=name)):
                return
        held = self.rules(user, namespace)
        gathers = obj.get("aggregationRule") or (old or {}).get("aggregationRule")  # what anybody writes
        if gathers and not all(any(_covers(own, wanted) for own in held) for rule in _EVERYTHING for wanted in _atoms(rule)):
            raise forbidden(resource.plural, _GROUP, name, "must have cluster-admin privileges to use the aggregationRule")
        missing = [wanted for rule in rules for wanted in _atoms(rule) if not any(_covers(own, wanted) for own in held)]
        if missing:
            groups = " ".join(f'"{group}"' for group in user.groups)
            who = f'user "{user.name}" (groups=[{groups}])'
            told = "\n".join(sorted({_shown(wanted) for wanted in missing}))
            raise forbidden(resource.plural, _GROUP, name, f"{who} is attempting to grant RBAC permissions not currently held:\n{told}")

    def _bound(self, user: User, namespace: str) -> Iterator[tuple[str, str, str, list[Obj]]]:
        """(binding, role, whom it names, rules) of all bindings of a user."""
        cluster_wide = self._store.bucket(f"{_GROUP}/clusterrolebindings").select(None)
        for entry in chain(cluster_wide, self._store.bucket(f"{_GROUP}/rolebindings").select(namespace) if namespace else ()):
            subject = _subject(entry.obj, user)
            role = self._role(entry.obj["roleRef"], namespace) if subject else None
            if role is not None:
                yield _spelt(entry), _spelt(role), subject, role.obj.get("rules") or []

    def _role(self, ref: Obj, namespace: str) -> Entry | None:
        """The role that a binding names."""
        plural = _plural(ref)
        return self._store.bucket(f"{_GROUP}/{plural}").get(namespace if plural == "roles" else "", ref.get("name") or "")


def _handed_on(role: Obj) -> tuple[object, ...]:
    """What decides who gets which rights by a role."""
    return role.get("rules") or [], role.get("aggregationRule"), role["metadata"].get("labels") or {}


def _plural(ref: Obj) -> str:
    return "clusterroles" if ref.get("kind") == "ClusterRole" else "roles"


def _spelt(entry: Entry) -> str:
    """`Role/namespace/name` of a role or binding, `ClusterRole/name` of one in no namespace."""
    return "/".join(part for part in (entry.obj["kind"], entry.namespace, entry.name) if part)


def _everybody(user: User, wanted: Attributes) -> bool:
    known = AUTHENTICATED in user.groups
    if wanted.path:
        return any(wanted.path == path or wanted.path.startswith(f"{path}/") for path in (_DISCOVERY if known else _PUBLIC))
    return known and any(_covers(rule, wanted) for rule in _BASIC_RULES)


def _subject(binding: Obj, user: User) -> str:
    """As whom a binding names a user, "" when it does not."""
    for subject in binding.get("subjects") or ():
        kind, name = subject.get("kind"), subject.get("name")
        namespace = subject.get("namespace") or binding["metadata"].get("namespace")
        if (kind == "User" and name == user.name) or (kind == "Group" and name in user.groups):
            return f'{kind} "{name}"'
        if kind == "ServiceAccount" and user.name == f"{ACCOUNT}{namespace}:{name}":
            return f'{kind} "{name}/{namespace}"'
    return ""


def _atoms(rule: Obj) -> Iterator[Attributes]:
    """All single things that a rule allows."""
    for verb in rule.get("verbs") or ():
        for path in rule.get("nonResourceURLs") or ():
            yield Attributes(verb, path=path)
        for group in rule.get("apiGroups") or ():
            for resource in rule.get("resources") or ():
                plural, _, part = resource.partition("/")
                for name in rule.get("resourceNames") or ("",):
                    yield Attributes(verb, group, plural, part, name=name)


def _shown(wanted: Attributes) -> str:
    if wanted.path:
        return f'{{NonResourceURLs:["{wanted.path}"], Verbs:["{wanted.verb}"]}}'
    names = f', ResourceNames:["{wanted.name}"]' if wanted.name else ""
    return f'{{APIGroups:["{wanted.group}"], Resources:["{wanted.full_resource}"]{names}, Verbs:["{wanted.verb}"]}}'


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
