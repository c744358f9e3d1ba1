"""The kubelet's HTTP API: pods and configuration (KLO-SI-02, KLO-SI-05)."""

from __future__ import annotations

import asyncio
import logging
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import orjson

from koord import seams
from koord.kube.connection import Lost, NotSent
from koord.kube.credentials import CredentialError, KubeConfigError
from koord.kube.pool import Pool
from roles.koordlet.metrics.registry import Metrics
from roles.koordlet.states.kubelet_trust import Machine, Verifier

if TYPE_CHECKING:
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
        self._pool: Pool | None = None
        self._server: tuple[str, str] = ("", "")
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
        server = kubelet_url(node, self._options)
        url = server + path
        begun = seams.monotonic()
        code = "error"
        try:
            async with asyncio.timeout(self._options.timeout):
                code, body = await (self._plain(server, path) if self._options.insecure else self._verified(server, path))
            if code != "200":
                raise KubeletError(f"{url}: HTTP {code}: {body[:200].decode('utf-8', 'replace').strip()}")
        except TimeoutError:
            raise KubeletError(f"{url}: no answer within {self._options.timeout:g} s") from None
        except (NotSent, Lost, OSError) as error:
            raise KubeletError(f"{url}: {error or type(error).__name__}") from None
        except ValueError as error:  # whoever registers the Node may write any text
            raise KubeletError(f"{url!r}: the Node's address or port cannot be used: {error}") from None
        finally:
            self._metrics.kubelet_request.observe(seams.monotonic() - begun, "get", path, code)
        return body

    async def _plain(self, server: str, path: str) -> tuple[str, bytes]:
        """By HTTP, where no credentials go."""
        return await self._read(await self._connections(server), path, "", None)

    async def _verified(self, server: str, path: str) -> tuple[str, bytes]:
        """By HTTPS. The token is sent behind the handshake, which a stranger does not get through."""
        url, named = server + path, urlsplit(server)
        host = named.hostname or ""
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
        authorization = await self._authorization()
        where = f"[{address}]" if ":" in address else address
        pool = await self._connections(f"https://{where}:{named.port}", host)
        refused = ""
        for context in contexts:
            try:
                return await self._read(pool, path, authorization, context)
            except NotSent as error:
                if not isinstance(error.__cause__, ssl.SSLCertVerificationError):
                    raise
                refused = f" ({error.__cause__})"
        raise KubeletError(f"{url}: the certificate there is not known{refused}: {self._verifier.advice}")

    async def _read(self, pool: Pool, path: str, authorization: str, context: ssl.SSLContext | None) -> tuple[str, bytes]:
        head = f"GET {path} HTTP/1.1\r\nHost: {pool.host}\r\nUser-Agent: koordlet\r\nAccept: */*\r\nAccept-Encoding: identity\r\n"
        body = bytearray()
        async with pool.stream(f"{head}{authorization}\r\n".encode("latin-1"), context, self._options.timeout) as answer:
            async for data in answer.iter_any():
                body += data
                if len(body) > MAX_ANSWER_BYTES:
                    raise KubeletError(f"{path}: the answer is larger than {MAX_ANSWER_BYTES} bytes")
            return str(answer.status), bytes(body)

    async def _connections(self, server: str, name: str = "") -> Pool:
        """Connections to this server, whose certificate is for `name`. No redirect and no proxy of the environment has a place there."""
        if self._pool is None or self._server != (server, name):
            await self.close()
            self._pool = Pool(server, limit=2, connect_timeout=self._options.timeout, server_name=name or None)
            self._server = (server, name)
        return self._pool

    async def _authorization(self) -> str:
        """The header line that tells who asks, "" for nobody. Raises KubeletError."""
        try:
            header = await self._config.credentials.authorization() if self._config is not None else None
        except CredentialError as error:
            raise KubeletError(str(error)) from None
        if not header:
            return ""
        if not (header.isprintable() and header.isascii()):
            raise KubeletError("the credentials contain characters that no header can carry")
        return f"Authorization: {header}\r\n"

    async def close(self) -> None:
        """Close all connections."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()
