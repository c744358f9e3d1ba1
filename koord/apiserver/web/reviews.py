"""Reviews: questions about tokens and access that are answered and not stored. Whoever is let in may do everything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from koord.apiserver.rest import subresources
from koord.apiserver.rest.meta import check_identity
from koord.apiserver.rest.write import decode

if TYPE_CHECKING:
    from koord.apiserver.core import Core
    from koord.apiserver.rest.context import Options
    from koord.apiserver.web.routes import Target

Obj = dict[str, Any]


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
        everything = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
        out["status"] = {
            "resourceRules": [everything],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
            "incomplete": False,
        }
    else:
        out["status"] = {"allowed": True, "reason": "the embedded API server allows everything"}
    return out
