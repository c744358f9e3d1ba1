"""The kubelet's HTTP API: pods and configuration (KLO-SI-02, KLO-SI-05)."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from koord import seams
from roles.koordlet.metrics.registry import Metrics
from roles.koordlet.states.kubelet_trust import Machine, Verifier

if TYPE_CHECKING:
    import aiohttp

    from koord.api.objects import Node
    from koord.kube.config import ClientConfig

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


class KubeletClient:
    """GET requests to the kubelet with the credentials of the API client, which only the verified kubelet of this machine gets to see."""

    def __init__(self, options: KubeletOptions, metrics: Metrics, config: ClientConfig | None, machine: Machine | None = None) -> None:
        self._options = options
        self._metrics = metrics
        self._config = config
        self._machine = machine or Machine()
        self._session: aiohttp.ClientSession | None = None
        self._verifier: Verifier | None = None

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
            code, body = await (self._plain(url) if self._options.insecure else self._verified(url))
            if code != "200":
                raise KubeletError(f"{url}: HTTP {code}: {body[:200].decode('utf-8', 'replace').strip()}")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise KubeletError(f"{url}: {error or type(error).__name__}") from None
        finally:
            self._metrics.kubelet_request.observe(seams.monotonic() - begun, "get", path, code)
        if len(body) > MAX_ANSWER_BYTES:
            raise KubeletError(f"{url}: the answer is larger than {MAX_ANSWER_BYTES} bytes")
        return body

    async def _plain(self, url: str) -> tuple[str, bytes]:
        """By HTTP, where no credentials go."""
        return await self._read(url, {}, ssl=False)

    async def _verified(self, url: str) -> tuple[str, bytes]:
        """By HTTPS. The token is sent behind the handshake, which a stranger does not get through."""
        import aiohttp
        from yarl import URL

        from koord.kube.credentials import KubeConfigError

        named = URL(url)
        host = named.host or ""
        address = await self._machine.resolved(host)
        if not address:
            known = ", ".join(sorted(self._machine.addresses())) or "none that can be read"
            raise KubeletError(
                f"{url}: {host} is no address of this machine (it has: {known}); the token is not sent there. See "
                "--kubelet-preferred-address-type"
            )
        self._verifier = self._verifier or Verifier(self._machine, self._config)
        try:
            contexts = self._verifier.contexts()
        except KubeConfigError as error:
            raise KubeletError(f"{url}: {error}") from None
        headers = await self._authorization()
        refused = ""
        for context in contexts:
            try:
                return await self._read(str(named.with_host(address)), headers, ssl=context, server_hostname=host)
            except aiohttp.ClientConnectorCertificateError as error:
                refused = f" ({error.certificate_error})"
        raise KubeletError(f"{url}: the certificate there is not known{refused}: {self._verifier.advice}")

    async def _read(self, url: str, headers: dict[str, str], **options: Any) -> tuple[str, bytes]:
        session = await self._open()
        async with session.get(url, headers=headers, allow_redirects=False, **options) as response:
            body = await response.content.read(MAX_ANSWER_BYTES + 1)
            while not response.content.at_eof() and len(body) <= MAX_ANSWER_BYTES:
                body += await response.content.read(MAX_ANSWER_BYTES + 1)
            return str(response.status), body

    async def _open(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._session is None:
            # a redirect or a proxy of the environment has no place between the agent and its own kubelet
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=self._options.timeout), headers={"User-Agent": "koordlet"}, trust_env=False
            )
        return self._session

    async def _authorization(self) -> dict[str, str]:
        if self._config is None:
            return {}
        header = await self._config.credentials.authorization()
        return {"Authorization": header} if header else {}

    async def close(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()
            await seams.sleep(0)
