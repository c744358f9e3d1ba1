"""Asking a node's kubelet for its pods, the way koordlet does."""

from __future__ import annotations

import msgspec

from koord.api.kinds import NODES
from koord.api.objects import Node, convert
from koord.kube.client import Client
from koord.kube.config import ClientConfig
from koord.kube.errors import ApiError
from roles.koordlet.host.root import HostRoot
from roles.koordlet.metrics.registry import Metrics
from roles.koordlet.states.kubelet import KubeletClient, KubeletError, KubeletOptions
from roles.koordlet.states.kubelet_trust import Machine


async def pods(client: Client, config: ClientConfig, name: str, root: HostRoot) -> str:
    """ "" when the kubelet lists its pods to our credentials, else why not."""
    try:
        node = convert(await client.get(NODES, name), Node)
    except (ApiError, msgspec.ValidationError) as error:
        return f"Node {name}: {error}"
    kubelet = KubeletClient(KubeletOptions(), Metrics(name), config, Machine(root.kubelet, root.proc))
    try:
        await kubelet.pods(node)
    except KubeletError as error:
        return str(error)
    finally:
        await kubelet.close()
    return ""
