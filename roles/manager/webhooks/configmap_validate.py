"""/validate-configmap: slo-controller-config before it takes effect (MGR-CM-V-01)."""

from __future__ import annotations

from collections.abc import Mapping

from koord import seams
from koord.config import slo_validate
from roles.manager.webhooks.review import Refusal, Request
from roles.manager.webhooks.view import View


async def validate(request: Request, view: View) -> None:
    """Raises Refusal. Only the configured ConfigMap is looked at; deleting it is allowed."""
    options = view.options
    name = request.name or ((request.object or {}).get("metadata") or {}).get("name")
    if request.operation == "DELETE" or (request.namespace, name) != (options.config_namespace, options.slo_config_name):
        return
    new, old = ({key: text or "" for key, text in ((obj or {}).get("data") or {}).items()} for obj in (request.object, request.old_object))
    nodes = [(node.metadata.name, node.metadata.labels) for node in view.node_objects()]
    try:
        # Off the loop: hundreds of entries over thousands of nodes take a while, and others wait for their reviews.
        await seams.to_thread(_check, new, old, nodes, need_names=options.node_strategy_name_need_check)
    except slo_validate.Refused as refused:
        raise Refusal(str(refused)) from None


def _check(new: Mapping[str, str], old: Mapping[str, str], nodes: list[tuple[str, Mapping[str, str]]], *, need_names: bool) -> None:
    for entries in slo_validate.check(new, old, need_names=need_names):
        for name, labels in nodes:
            found = entries.conflict(labels)
            if found:
                message = f"{entries.key}: node {name} matches more than one node strategy: {', '.join(found)}"
                raise slo_validate.Refused("ExistNodeConfict", [message])
