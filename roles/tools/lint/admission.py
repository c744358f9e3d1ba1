"""The manager's webhooks over the objects of the files: what they see of a cluster is what is being linted."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Iterable, Iterator
from typing import Any

import msgspec

from koord.api import names
from koord.api.kinds import BY_GVK, Kind
from koord.api.objects import ClusterColocationProfile, Namespace, PriorityClassObject, convert
from koord.config.gates import MANAGER, FeatureGates
from koord.kube.errors import NotFound
from koord.kube.patch import apply_json_patch, copy_json
from roles.manager.clients import Clients
from roles.manager.options import Options
from roles.manager.webhooks.registry import WEBHOOKS, Webhook
from roles.manager.webhooks.review import Refusal, Request
from roles.manager.webhooks.view import View
from roles.tools.simulate.cluster import Held

Obj = dict[str, Any]


class _Files:
    """The reader that handlers are given: what the files hold, nothing else."""

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Obj:
        """No object of a cluster is known."""
        raise NotFound(404, "NotFound", f"{kind.plural} {name!r} is not among the files", {})


class Admission:
    """A View of the manager's webhooks, filled from files."""

    def __init__(self, objects: Iterable[Obj], classes: Iterable[Obj]) -> None:
        gates = FeatureGates(MANAGER)
        # 0: a profile with any probability at all is applied.
        self.view = View(Options(), gates, Clients.one(_Files()), draw=lambda: 0)  # type: ignore[arg-type]
        self.view.priority_classes = Held({c["metadata"]["name"]: convert(c, PriorityClassObject) for c in classes})
        namespaces: dict[str, Any] = {}
        for obj in objects:
            try:
                if obj.get("kind") == "ClusterColocationProfile":
                    self.view.on_profile(convert(obj, ClusterColocationProfile))
                elif obj.get("kind") == "Namespace":
                    namespaces[obj["metadata"]["name"]] = convert(obj, Namespace)
            except (msgspec.ValidationError, KeyError, TypeError):
                continue  # told by the schema
        self.view.namespaces = Held(namespaces)

    async def admit(self, obj: Obj) -> list[str]:
        """What the webhooks would refuse of an object that is created, mutated first as it would be; empty when they let it in."""
        kind = BY_GVK.get((str(obj.get("apiVersion")), str(obj.get("kind"))))
        if kind is None:
            return []
        current = copy_json(obj)
        # a pod that has its node is one of a cluster, and carries what the scheduler wrote
        user = self.view.allocation_writers[0] if (obj.get("spec") or {}).get("nodeName") else ""
        try:
            for webhook in (*self._for(kind, mutating=True), *self._for(kind, mutating=False)):
                answer = await webhook.handle(_request(kind, current, user), self.view, _untimed)
                if answer.patch:
                    current = apply_json_patch(current, answer.patch)
        except Refusal as refused:
            return split(refused.message)
        return []

    def _for(self, kind: Kind, *, mutating: bool) -> Iterator[Webhook]:
        for webhook in WEBHOOKS:
            if webhook.mutating is mutating and webhook.active(self.view.gates):
                for one in webhook.registrations:
                    if one.group == kind.group and kind.plural in one.resources and "CREATE" in one.operations and not one.object_selector:
                        yield webhook


async def _untimed(name: str, call: Awaitable[Any]) -> Any:
    return await call


def _request(kind: Kind, obj: Obj, username: str) -> Request:
    meta = obj.get("metadata") or {}
    namespace = (meta.get("namespace") or "default") if kind.namespaced else ""
    return Request("lint", "CREATE", kind.group, kind.plural, "", namespace, meta.get("name") or "", copy_json(obj), None, username)


def split(message: str) -> list[str]:
    """The failures that a webhook joined into one message."""
    return re.split(r"; (?=quota |(?:metadata|spec)[.\[])", message)


_PATH = re.compile(r"""(?:metadata|spec)(?:\.[A-Za-z]\w*|\["[^"]+"\]|\[[^\]\s]+\])+""")


def path_in(message: str) -> str:
    """The field that a refusal speaks of."""
    found = _PATH.search(message)
    if found:
        return found.group()
    for word, key in (("tree id", names.LABEL_QUOTA_TREE_ID), ("parent", names.LABEL_QUOTA_PARENT)):
        if word in message:
            return f'metadata.labels["{key}"]'
    return "metadata.name"
