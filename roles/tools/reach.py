"""Finding koord's roles in a cluster, and asking them through the API server with the caller's own rights.

The API server passes a request on to a pod (`pods/proxy`) but takes the Authorization header away, so the caller's token travels in
a header of our own, which the roles review like any other. Who has no token (a client certificate) borrows one of the
ServiceAccount that is installed for it, as far as they may (`serviceaccounts/token`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from koord.api.kinds import PODS
from koord.kube import config, errors
from koord.kube.client import Client
from koord.process.serving import TOKEN_HEADER
from roles.tools.place import SYSTEM_NAMESPACE

READER = "koord-diagnostics"
"""The ServiceAccount whose token is borrowed by who has none."""
TOKEN_SECONDS = 600
APPS = {
    "scheduler": ("koord-scheduler", "https", 10259),
    "manager": ("koord-manager", "metrics", 8080),
    "descheduler": ("koord-descheduler", "https", 10258),
}
"""Role: (value of the label koord-app, name of the container's port, its number in pods that do not name it)."""
AGENT = ("koordlet", "http", 9316)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The operations port of a role. `server` and `prefix`: the API server that passes requests on to it, and the path there."""

    url: str
    role: str = ""
    server: config.ClientConfig | None = field(default=None, compare=False, repr=False)
    prefix: str = ""

    def __str__(self) -> str:
        return f"{self.role} at {self.url}" if self.role else self.url

    def connection(self) -> config.ClientConfig:
        """How it is reached."""
        return self.server or config.ClientConfig(self.url)


async def token_header(client: Client, system: str = SYSTEM_NAMESPACE) -> str:
    """What proves to a role who asks: the caller's own bearer token, or a borrowed one. Raises ApiError."""
    own = await client.config.credentials.authorization()
    if own and own.startswith("Bearer "):
        return own
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": TOKEN_SECONDS}}
    path = f"/api/v1/namespaces/{system}/serviceaccounts/{READER}/token"
    status, raw = await client.raw("POST", path, body)
    if status not in (200, 201):
        raise errors.from_response(status, raw)
    return f"Bearer {orjson.loads(raw)['status']['token']}"


async def find(client: Client, node: str = "", system: str = SYSTEM_NAMESPACE) -> tuple[list[Endpoint], list[str]]:
    """The roles of a cluster as endpoints, and the agent of `node`; and what stands in the way, in words.

    Only pods of koord's own namespace, `system`, are looked at: the caller's token is shown to them.
    """
    try:
        pods = (await client.list(PODS, system, label_selector="koord-app")).items
    except errors.ApiError as error:
        hint = "; Role and ClusterRole koord-diagnostics-reader allow it" if isinstance(error, errors.Forbidden) else ""
        return [], [f"the pods of {system} cannot be listed: {error}{hint}"]
    wanted = [(role, pod, _port(pod, port, number)) for role, (app, port, number) in APPS.items() for pod in pods if _runs(pod, app)]
    if node:
        agents = [pod for pod in pods if _runs(pod, AGENT[0]) and pod["spec"].get("nodeName") == node]
        wanted += [("koordlet", pod, _port(pod, *AGENT[1:])) for pod in agents]
    if not wanted:
        where = f" and none on node {node}" if node else ""
        return [], [f"no running pod of koord's roles in {system}{where}; --koord-namespace names another namespace"]
    try:
        header = await token_header(client, system)
    except errors.ApiError as error:
        return [], [f"no token to show to the roles: {error} (ServiceAccount {system}/{READER})"]
    server = replace(client.config, headers=(*client.config.headers, (TOKEN_HEADER, header)))
    return [_endpoint(role, pod, port, server) for role, pod, port in wanted], []


def _runs(pod: dict[str, Any], app: str) -> bool:
    return (pod["metadata"].get("labels") or {}).get("koord-app") == app and (pod.get("status") or {}).get("phase") == "Running"


def _port(pod: dict[str, Any], name: str, default: int) -> int:
    """The port that a pod's containers call by this name: charts and overlays move ports."""
    ports = [port for container in (pod.get("spec") or {}).get("containers") or () for port in container.get("ports") or ()]
    return int(next((port["containerPort"] for port in ports if port.get("name") == name), default))


def _endpoint(role: str, pod: dict[str, Any], port: int, server: config.ClientConfig) -> Endpoint:
    name, system = pod["metadata"]["name"], pod["metadata"]["namespace"]
    prefix = f"/api/v1/namespaces/{system}/pods/https:{name}:{port}/proxy"
    return Endpoint(f"pod {name} by way of the API server", role, server, prefix)
