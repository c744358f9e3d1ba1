"""Reviews: questions about tokens and access that are answered and not stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koord.apiserver.rbac import MASTERS, of_review
from koord.apiserver.rest import subresources
from koord.apiserver.rest.context import User, check_identity
from koord.apiserver.rest.write import decode
from koord.apiserver.store import Obj

if TYPE_CHECKING:
    from koord.apiserver.core import Core
    from koord.apiserver.rest.context import Options
    from koord.apiserver.web.handler import Target

_EVERYTHING = {
    "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
    "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    "incomplete": False,
}


async def answer(core: Core, target: Target, obj: Obj, options: Options) -> Obj:
    """The object with its status filled in."""
    resource = target.resource
    check_identity(resource, obj, target.place, "")
    decode(resource, obj, options)
    if resource.kind == "Binding":
        return await subresources.bind(core, target.place, obj["metadata"].get("name") or "", obj, options)
    out: Obj = {
        "kind": resource.kind,
        "apiVersion": resource.api_version,
        "metadata": {"creationTimestamp": None},
        "spec": obj.get("spec") or {},
    }
    if resource.kind == "TokenReview":
        user = core.tokens.review(out["spec"].get("token") or "")
        if user is None:
            out["status"] = {"authenticated": False, "error": "[invalid bearer token]"}
        else:
            out["status"] = {
                "authenticated": True,
                "user": user.wire(),
                "audiences": out["spec"].get("audiences") or ["https://kubernetes.default.svc"],
            }
    elif resource.kind == "SelfSubjectReview":
        del out["spec"]
        out["status"] = {"userInfo": options.user.wire()}
    elif resource.kind == "SelfSubjectRulesReview":
        out["status"] = _rules(core, options.user, out["spec"].get("namespace") or "")
    else:
        out["status"] = _access(core, resource.kind, out["spec"], target.place, options)
    return out


def _rules(core: Core, user: User, namespace: str) -> Obj:
    if core.authorizer is None or MASTERS in user.groups:
        return _EVERYTHING
    found = core.authorizer.rules(user, namespace)
    return {
        "resourceRules": [rule for rule in found if rule.get("resources")],
        "nonResourceRules": [rule for rule in found if rule.get("nonResourceURLs")],
        "incomplete": False,
    }


def _access(core: Core, kind: str, spec: Obj, namespace: str, options: Options) -> Obj:
    """The status of an access review: about the asker, or about whom the spec names."""
    if core.authorizer is None:
        return {"allowed": True, "reason": "the embedded API server allows everything"}
    user = options.user
    if kind != "SelfSubjectAccessReview":
        user = User(spec.get("user") or "", tuple(spec.get("groups") or ()), spec.get("uid") or "")
    wanted = of_review(spec)
    if kind == "LocalSubjectAccessReview":
        wanted = wanted._replace(namespace=namespace)
    if MASTERS in user.groups:
        return {"allowed": True}
    allowance = core.authorizer.find(user, wanted)
    if allowance is None:
        return {"allowed": False, "reason": ""}
    return {"allowed": True, "reason": f'RBAC: allowed by {allowance.binding} of {allowance.role} to User "{user.name}"'}
