"""/validate-configmap: slo-controller-config before it takes effect (MGR-CM-V-01, manager.md 5.13)."""

from __future__ import annotations

from koord.config import slo_validate
from roles.manager.webhooks.review import Refusal, Request
from roles.manager.webhooks.view import View


async def validate(request: Request, view: View) -> None:
    """Raises Refusal. Only the configured ConfigMap is looked at; deleting it is allowed."""
    options = view.options
    name = request.name or ((request.object or {}).get("metadata") or {}).get("name")
    if request.operation == "DELETE" or (request.namespace, name) != (options.config_namespace, options.slo_config_name):
        return
    new, old = ((obj or {}).get("data") or {} for obj in (request.object, request.old_object))
    try:
        many = slo_validate.check(new, old, need_names=options.node_strategy_name_need_check)
        for key in many:
            for node in view.node_objects():
                for _, names in slo_validate.conflicts(new, (key,), node.metadata.labels):
                    message = f"{key}: node {node.metadata.name} matches more than one node strategy: {', '.join(names)}"
                    raise slo_validate.Refused("ExistNodeConfict", [message])
    except slo_validate.Refused as refused:
        raise Refusal(str(refused)) from None
