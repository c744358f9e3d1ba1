"""What expressions of policies and match conditions see of a request, and the authorizer that they may ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from koord.apiserver.admission.matching import Attributes, describe, in_version
from koord.apiserver.cel.environment import readable
from koord.apiserver.cel.library import authorizer
from koord.apiserver.rbac import Attributes as Question
from koord.apiserver.rest.context import User

if TYPE_CHECKING:
    from koord.apiserver.core import Core
    from koord.apiserver.resources import Resource

Obj = dict[str, Any]


def values(core: Core, resource: Resource, attributes: Attributes) -> Obj:
    """The variables of a request. `params` is the caller's."""
    user = attributes.options.user
    namespace = core.store.bucket("/namespaces").get("", attributes.namespace) if attributes.namespace else None
    given = {"group": resource.group, "resource": resource.plural, "subresource": attributes.subresource}
    given |= {"namespace": attributes.namespace, "name": attributes.name}
    return {
        "object": readable(in_version(attributes.obj, resource)) if attributes.obj is not None else None,
        "oldObject": readable(in_version(attributes.old, resource)) if attributes.old is not None else None,
        "request": readable(describe(resource, attributes)),
        "namespaceObject": readable(namespace.obj) if namespace is not None else None,
        "params": None,
        "authorizer": authorizer(user.name, user.groups),
        "authorizer.requestResource": authorizer(user.name, user.groups, **given),
    }


def answers(core: Core) -> Callable[[Obj], tuple[bool, str]]:
    """The authorizer of a server; without RBAC everybody may do everything."""

    def allows(question: Obj) -> tuple[bool, str]:
        if core.authorizer is None:
            return True, ""
        parts = ("verb", "group", "resource", "subresource", "namespace", "name", "path")
        wanted = Question(**{part: question.get(part) or "" for part in parts})
        return core.authorizer.would_allow(User(question["user"], tuple(question["groups"])), wanted), ""

    return allows
