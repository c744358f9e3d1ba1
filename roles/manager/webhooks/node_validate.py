"""/validate-node: a label change must not make a node match two entries of one key (MGR-NODE-V-01)."""

from __future__ import annotations

import logging

from roles.manager.webhooks.review import Refusal, Request
from roles.manager.webhooks.view import View

log = logging.getLogger("koord.manager.webhooks")


async def validate(request: Request, view: View) -> None:
    """Raises Refusal on UPDATE only; on CREATE a conflict is logged, for a node must be able to join."""
    if request.sub_resource or request.operation not in ("CREATE", "UPDATE") or not view.slo_data or request.object is None:
        return
    labels, before = ((((obj or {}).get("metadata") or {}).get("labels") or {}) for obj in (request.object, request.old_object))
    if request.operation == "UPDATE" and labels == before:
        return
    conflicts = [(entries.key, entries.conflict(labels)) for entries in view.node_entries()]
    found = [f"{key}: {', '.join(names)}" for key, names in conflicts if names]
    if not found:
        return
    message = f"node {request.name} matches more than one node strategy of {view.options.slo_config_name}: {'; '.join(found)}"
    if request.operation == "CREATE":
        log.warning("%s", message)
        return
    raise Refusal(message)
