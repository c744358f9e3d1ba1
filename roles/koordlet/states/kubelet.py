"""The kubelet's HTTP API: pods and configuration (KLO-SI-02, KLO-SI-05)."""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import orjson

from koord import seams
from roles.koordlet.metrics.registry import Metrics

if TYPE_CHECKING:
    import aiohttp

    from koord.api.objects import Node
    from koord.kube.config import ClientConfig
    from koord.kube.tls import TlsSource

log = logging.getLogger(__name__)

ADDRESS_TYPES = ("Hostname", "ExternalIP", "ExternalDNS", "InternalIP", "InternalDNS")
#: A PodList of 500 pods is about 5 MiB; an answer beyond this is not the kubelet's.
MAX_ANSWER_BYTES = 64 << 20


class KubeletError(Exception):
    """The kubelet did not answer, or not with what was asked for."""


@dataclass(frozen=True, slots=True)
class KubeletOptions:
    """``insecure``: plain HTTP to ``read_only_port``; otherwise HTTPS to the port of the Node's status."""

    address_type: str = "InternalIP"
    insecure: bool = False
    read_only_port: int = 10255
    timeout: float = 3.0


def kubelet_url(node: Node, options: KubeletOptions) -> str:
    """Base address of this node's kubelet. :class:`KubeletError` when the Node does not tell it."""
    wanted = options.address_type if options.address_type in ADDRESS_TYPES else "InternalIP"
    address = node.status.address(wanted)
    if not address:
        known = ", ".join(sorted({a.type for a in node.status.addresses})) or "none"
        raise KubeletError(
            f"node {node.metadata.name} has no address of type {wanted} (it has: {known}); see --kubelet-preferred-address-type"
        )
    host = f"[{address}]" if ":" in address else address
    if options.insecure:
        return f"http://{host}:{options.read_only_port}"
    port = node.status.daemon_endpoints.kubelet_endpoint.port
    if not port:
        raise KubeletError(f"node {node.metadata.name} has no status.daemonEndpoints.kubeletEndpoint.Port")
    return f"https://{host}:{port}"


def _unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class KubeletClient:
    """GET requests to the kubelet; credentials of the API client, server certificate not verified (it is self-signed)."""

    def __init__(self, options: KubeletOptions, metrics: Metrics, config: ClientConfig | None) -> None:
        self._options = options
        self._metrics = metrics
        self._config = config
        self._session: aiohttp.ClientSession | None = None
        self._tls_source: TlsSource | None = None

    async def pods(self, node: Node) -> bytes:
        """The PodList as bytes."""
        return await self._get(node, "/pods/")

    async def configz(self, node: Node) -> dict[str, Any]:
        """The kubelet's configuration (``kubeletconfig``)."""
        body = await self._get(node, "/configz")
        try:
            answer = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise KubeletError(f"/configz: the answer is not JSON: {error}") from None
        config = answer.get("kubeletconfig") if isinstance(answer, dict) else None
        if not isinstance(config, dict):
            raise KubeletError("/configz: the answer has no object 'kubeletconfig'")
        return config

    async def _get(self, node: Node, path: str) -> bytes:
        import aiohttp

        url = kubelet_url(node, self._options) + path
        begun = seams.monotonic()
        code = "error"
        try:
            session = await self._open()
            headers = await self._authorization()
            async with session.get(url, headers=headers, ssl=self._tls(), allow_redirects=False) as response:
                body = await response.content.read(MAX_ANSWER_BYTES + 1)
                while not response.content.at_eof() and len(body) <= MAX_ANSWER_BYTES:
                    body += await response.content.read(MAX_ANSWER_BYTES + 1)
                code = str(response.status)
                if response.status != 200:
                    raise KubeletError(f"{url}: HTTP {response.status}: {body[:200].decode('utf-8', 'replace').strip()}")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise KubeletError(f"{url}: {error or type(error).__name__}") from None
        finally:
            self._metrics.kubelet_request.observe(seams.monotonic() - begun, "get", path, code)
        if len(body) > MAX_ANSWER_BYTES:
            raise KubeletError(f"{url}: the answer is larger than {MAX_ANSWER_BYTES} bytes")
        return body

    async def _open(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._session is None:
            # a redirect or a proxy of the environment has no place between the agent and its own kubelet
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=self._options.timeout), headers={"User-Agent": "koordlet"}, trust_env=False
            )
        return self._session

    async def _authorization(self) -> dict[str, str]:
        if self._options.insecure or self._config is None:
            return {}
        header = await self._config.credentials.authorization()
        return {"Authorization": header} if header else {}

    def _tls(self) -> ssl.SSLContext | bool:
        """The client's certificate if there is one; the server's is self-signed and not verified."""
        if self._options.insecure:
            return False
        if self._config is None:
            return _unverified()
        if self._tls_source is None:
            from koord.kube.tls import TlsSource

            self._tls_source = TlsSource(replace(self._config, server="https://kubelet", ca=None, insecure=True))
        return self._tls_source.context() or _unverified()

    async def close(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()
            await seams.sleep(0)
