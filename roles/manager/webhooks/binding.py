"""/validate-pod-binding: who may bind pods to nodes (MGR-POD-V-06)."""

from __future__ import annotations

from typing import Any

from roles.manager.options import Options
from roles.manager.webhooks.review import Refusal, Request
from roles.manager.webhooks.view import View


def decide(username: str, namespace: str, pod: Any, options: Options) -> str:
    """The decision's word, which is also the metric's; "denied" refuses, "" allows without a count. `pod` None: not readable."""
    if not options.binding_user_name:
        return ""
    if any(allowed in username for allowed in options.binding_user_name):
        return "allowed_username"
    if namespace in options.binding_exclude_namespaces:
        return "excluded_ns"
    if "*" not in options.binding_namespaces and namespace not in options.binding_namespaces:
        return "out_of_scope"
    if pod is None:
        return ""
    if any(key in pod.metadata.labels for key in options.binding_bypass_labels):
        return "bypass_label"
    if any(key in pod.metadata.annotations for key in options.binding_bypass_annotations):
        return "bypass_annotation"
    return "dry_run" if options.binding_dry_run else "denied"


async def validate(request: Request, view: View) -> None:
    """Raises Refusal with code 403."""
    if not view.gates.enabled("BindingAdmissionWebhook") or request.operation != "CREATE":
        return
    pod = view.pods.get(f"{request.namespace}/{request.name}") if view.pods else None
    decision = decide(request.username, request.namespace, pod, view.options)
    if decision and view.on_binding_decision is not None:
        view.on_binding_decision(decision)
    if decision == "denied":
        raise Refusal(f"Denied: user {request.username!r} may not bind pod {request.namespace}/{request.name}", 403)
