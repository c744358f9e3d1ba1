"""/validate-pod-eviction: a koordlet evicts pods of its own node only (BEY-SEC-01).

Its right `pods/eviction` holds in the whole cluster, and no policy sees on which node a pod is. The token of its pod names the node.
"""

from __future__ import annotations

from koord.api.kinds import PODS
from koord.api.objects import Pod, convert
from koord.kube.errors import ApiError
from roles.manager.webhooks.review import Refusal, Request
from roles.manager.webhooks.view import View

NODE_CLAIM = "authentication.kubernetes.io/node-name"
"""Where a bound token's node stands in `userInfo.extra` (Kubernetes 1.31 and later)."""


def account(namespace: str) -> str:
    """The user that koordlets are."""
    return f"system:serviceaccount:{namespace}:koordlet"


def refusal(node: str, pod_node: str) -> str:
    """Why the koordlet whose token names `node` may not evict a pod of `pod_node`; "" when it may."""
    if not node:
        return "the token of this koordlet names no node"
    return "" if node == pod_node else f"the koordlet of node {node} may not evict a pod of {f'node {pod_node}' if pod_node else 'no node'}"


async def validate(request: Request, view: View) -> None:
    """Raises Refusal with code 403, or 503 when it cannot be told where the pod is."""
    if request.operation != "CREATE" or request.username != account(view.options.webhook.namespace):
        return
    pod: Pod | None = view.pods.get(f"{request.namespace}/{request.name}") if view.pods else None
    if pod is None:
        try:
            found = await view.live.get(PODS, request.name, request.namespace)
            pod = convert(found, Pod) if found is not None else None
        except (ApiError, ValueError) as error:
            raise Refusal(f"pod {request.namespace}/{request.name} cannot be looked at: {error}", 503) from None
    if pod is None:
        raise Refusal(f"pod {request.namespace}/{request.name} is not known", 403)
    told = refusal(next(iter(request.extra.get(NODE_CLAIM, ())), ""), pod.spec.node_name)
    if told:
        raise Refusal(f"Denied: {told}", 403)
