"""The HTTP side of admission webhooks."""

from __future__ import annotations

import asyncio
import base64
import binascii
import ssl
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import aiohttp
import orjson

from koord.apiserver.admission.webhook_rules import Hook

if TYPE_CHECKING:
    from koord.apiserver.core import Core

Obj = dict[str, Any]

_VERSIONS = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")


class CallError(Exception):
    """A webhook that could not be asked, or whose answer is no AdmissionReview."""


class Unresolvable(CallError):
    """A webhook behind a Service that leads nowhere here."""


class Caller:
    """Posts AdmissionReviews; connections are kept."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._session: aiohttp.ClientSession | None = None
        self._contexts: dict[str, ssl.SSLContext] = {}

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _context(self, bundle: str) -> ssl.SSLContext:
        """TLS with the webhook's own authority, or the system's where it names none."""
        context = self._contexts.get(bundle)
        if context is None:
            try:
                pem = base64.b64decode(bundle).decode() if bundle else None
                context = ssl.create_default_context(cadata=pem)
            except (binascii.Error, ValueError, ssl.SSLError) as err:
                raise CallError(f"caBundle: {err}") from err
            self._contexts[bundle] = context
        return context

    def _address(self, hook: Hook) -> tuple[str, str]:
        """(URL, server name for TLS). Raises Unresolvable."""
        client = hook.raw["clientConfig"]
        if client.get("url"):
            return str(client["url"]), urlsplit(client["url"]).hostname or ""
        service = client["service"]
        where = f"{service.get('namespace')}/{service.get('name')}"
        address = self.core.config.webhook_services.get(where) or self._endpoint(service)
        if address is None:
            raise Unresolvable(f"service {where} has no address that this server could reach")
        path = service.get("path") or "/"
        return f"https://{address}{path}", f"{service.get('name')}.{service.get('namespace')}.svc"

    def _endpoint(self, service: Obj) -> str | None:
        """host:port of the first ready address behind a Service, by its Endpoints."""
        namespace, name = service.get("namespace") or "", service.get("name") or ""
        endpoints = self.core.store.bucket("/endpoints").get(namespace, name)
        for subset in (endpoints.obj.get("subsets") or ()) if endpoints else ():
            addresses, ports = subset.get("addresses") or (), subset.get("ports") or ()
            if addresses and ports:
                return f"{addresses[0]['ip']}:{self._port(namespace, name, service.get('port', 443), ports)}"
        return None

    def _port(self, namespace: str, name: str, port: int, ports: list[Obj]) -> int:
        """The endpoint port behind a service port: matched by the port's name, else the only one there is."""
        entry = self.core.store.bucket("/services").get(namespace, name)
        for known in (entry.obj["spec"].get("ports") or ()) if entry else ():
            if known.get("port") == port:
                for candidate in ports:
                    if candidate.get("name") == known.get("name"):
                        return int(candidate["port"])
        return int(ports[0]["port"])

    async def call(self, hook: Hook, review: Obj) -> Obj:
        """Ask; returns the response of the review. Raises CallError."""
        url, server_name = self._address(hook)
        version = next((v for v in hook.raw.get("admissionReviewVersions") or ("v1",) if v in ("v1", "v1beta1")), "v1")
        body = orjson.dumps({**review, "apiVersion": f"admission.k8s.io/{version}"})
        if self._session is None:
            self._session = aiohttp.ClientSession()
        joint = "&" if "?" in url else "?"
        tls: dict[str, Any] = {}
        if url.startswith("https:"):
            tls = {"ssl": self._context(hook.raw["clientConfig"].get("caBundle") or ""), "server_hostname": server_name}
        try:
            async with self._session.post(
                f"{url}{joint}timeout={hook.timeout:g}s",
                data=body,
                headers={"Content-Type": "application/json", "Accept": "application/json"},
                timeout=aiohttp.ClientTimeout(total=hook.timeout),
                allow_redirects=False,
                **tls,
            ) as response:
                raw = await response.read()
                status = response.status
        except TimeoutError as err:
            raise CallError(f'Post "{url}": context deadline exceeded') from err
        except (aiohttp.ClientError, OSError, asyncio.IncompleteReadError) as err:
            raise CallError(f'Post "{url}": {err}') from err
        if not 200 <= status < 300:
            raise CallError(f"the server responded with the status code {status} but did not return more information")
        return _response(raw, review["request"]["uid"])


def _response(raw: bytes, uid: str) -> Obj:
    try:
        answer = orjson.loads(raw)
    except orjson.JSONDecodeError as err:
        raise CallError(f"the answer is no JSON: {err}") from err
    if not isinstance(answer, dict) or answer.get("kind") != "AdmissionReview" or answer.get("apiVersion") not in _VERSIONS:
        raise CallError("expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview")
    response = answer.get("response")
    if not isinstance(response, dict):
        raise CallError("webhook response was absent")
    if response.get("uid") != uid:
        raise CallError(f"expected response.uid={uid!r}, got {response.get('uid')!r}")
    return response
