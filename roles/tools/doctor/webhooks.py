"""The registered webhooks: their certificates, and whether somebody answers."""

from __future__ import annotations

import asyncio
import base64
import binascii
import ssl
from typing import NamedTuple
from urllib.parse import urlsplit

from koord.api.kinds import ENDPOINTS, MUTATINGWEBHOOKCONFIGURATIONS, SERVICES, VALIDATINGWEBHOOKCONFIGURATIONS
from koord.kube.client import Client
from koord.kube.errors import NotFound
from koord.kube.tls import authorities
from roles.manager.options import WebhookOptions
from roles.tools.doctor.facts import ClusterFacts, Obj, WebhookFacts

TIMEOUT = 3.0  # seconds for a TLS handshake


async def gather(client: Client, facts: ClusterFacts) -> None:
    """Fill in the webhook configurations and every entry of them."""
    own = WebhookOptions()
    tried: dict[tuple[str, int, str, str], tuple[str | None, str]] = {}
    for kind, name in ((MUTATINGWEBHOOKCONFIGURATIONS, own.mutating_name), (VALIDATINGWEBHOOKCONFIGURATIONS, own.validating_name)):
        try:
            found = await client.get(kind, name)
        except NotFound:
            facts.webhook_configurations[name] = False
            continue
        facts.webhook_configurations[name] = True
        for entry in found.get("webhooks") or ():
            facts.webhooks.append(await _entry(client, name, entry, tried))


async def _entry(
    client: Client, configuration: str, entry: Obj, tried: dict[tuple[str, int, str, str], tuple[str | None, str]]
) -> WebhookFacts:
    target = entry.get("clientConfig") or {}
    bundle, wrong, expires = read_ca(target.get("caBundle"))
    where = await _where(client, target)
    tls: str | None = None
    unreachable = where.missing
    if not wrong and not unreachable:
        key = (where.host, where.port, where.server_name, bundle)
        if key not in tried:
            tried[key] = await handshake(*key)
        tls, unreachable = tried[key]
    return WebhookFacts(
        configuration,
        str(entry.get("name")),
        str(entry.get("failurePolicy") or "Fail"),
        where.shown,
        wrong,
        expires,
        where.ready,
        tls,
        unreachable,
    )


class _Target(NamedTuple):
    """Where a webhook is dialled. `ready` counts endpoints of a Service, None for a plain address."""

    shown: str
    host: str = ""
    port: int = 443
    server_name: str = ""
    ready: int | None = None
    missing: str = ""


async def _where(client: Client, target: Obj) -> _Target:
    service = target.get("service")
    if not service:
        url = str(target.get("url") or "")
        parts = urlsplit(url)
        if not parts.hostname:
            return _Target(url or "no target", missing="clientConfig names neither a service nor a url")
        return _Target(f"https://{parts.netloc}", parts.hostname, parts.port or 443, parts.hostname)
    namespace, name, port = service.get("namespace") or "", service.get("name") or "", int(service.get("port") or 443)
    shown = f"Service {namespace}/{name}"
    try:
        found = await client.get(SERVICES, name, namespace)
    except NotFound:
        return _Target(shown, ready=0, missing="it does not exist")
    ready = await _ready(client, namespace, name)
    address = (found.get("spec") or {}).get("clusterIP") or ""
    server_name = f"{name}.{namespace}.svc"
    host = server_name if address in ("", "None") else address
    return _Target(shown, host, port, server_name, ready)


async def _ready(client: Client, namespace: str, name: str) -> int | None:
    """Ready addresses of a Service; None where Endpoints are not kept."""
    try:
        found = await client.get(ENDPOINTS, name, namespace)
    except NotFound:
        return None
    return sum(len(subset.get("addresses") or ()) for subset in found.get("subsets") or ())


def read_ca(bundle: object) -> tuple[str, str, float | None]:
    """(PEM, what is wrong with it, Unix time at which the last of its certificates ends)."""
    from cryptography import x509

    if not bundle:
        return "", "is empty", None
    try:
        pem = base64.b64decode(str(bundle), validate=True)
        certificates = x509.load_pem_x509_certificates(pem)
    except (binascii.Error, ValueError) as error:
        return "", f"cannot be read: {error}", None
    return authorities(pem, "caBundle"), "", max(certificate.not_valid_after_utc.timestamp() for certificate in certificates)


async def handshake(host: str, port: int, server_name: str, ca: str) -> tuple[str | None, str]:
    """(what is wrong with the answer, "" for nothing; None when there was none, and why)."""
    context = ssl.create_default_context(cadata=ca)
    try:
        async with asyncio.timeout(TIMEOUT):
            _, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=server_name)
    except ssl.SSLCertVerificationError as error:
        return f"its certificate is not good: {error.verify_message}", ""
    except ssl.SSLError as error:
        return f"TLS: {error.reason or error}", ""
    except (OSError, TimeoutError) as error:
        return None, str(error) or "no answer"
    writer.close()
    return "", ""
