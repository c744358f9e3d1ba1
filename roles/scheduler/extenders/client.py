"""One HTTP extender: POST to a verb below its URL, JSON both ways, with its own timeout and TLS."""

from __future__ import annotations

import base64
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from koord.config.extenders import Extender as Config
from koord.config.extenders import ExtenderTLSConfig
from koord.kube.config import ClientConfig
from koord.kube.credentials import KubeConfigError
from koord.kube.tls import Pem, build_context
from koord.process.errors import ConfigurationError
from roles.scheduler.cluster.podinfo import PodInfo

MOST = 128 << 20  # bytes of an answer: five thousand whole nodes are a fifth of it


class ExtenderError(Exception):
    """The extender could not be asked, or what it said cannot be used."""


class ExtenderRefusal(ExtenderError):
    """The extender said no."""


class Extender:
    """Asks one extender. Raises ConfigurationError for certificates that cannot be read."""

    def __init__(self, config: Config, number: int) -> None:
        self.config = config
        self.name = config.url_prefix
        self.ignorable = config.ignorable
        self._url = config.url_prefix.rstrip("/")
        self._managed = frozenset(resource.name for resource in config.managed_resources)
        self._context = _context(config, f"extenders[{number}].tlsConfig") if self._url.startswith("https:") else None
        self._server_name = config.tls_config.server_name if config.tls_config is not None else ""
        self._session: aiohttp.ClientSession | None = None

    @property
    def unchecked(self) -> bool:
        """Whether the certificate of the extender is not checked."""
        return self._context is not None and self._context.verify_mode is ssl.CERT_NONE

    def interested(self, pod: PodInfo) -> bool:
        """Whether the extender looks after this pod: always without managed resources, else if the pod asks for one of them."""
        if pod.reservation:
            return False
        wanted = pod.shape
        return not self._managed or not self._managed.isdisjoint(wanted.amounts) or not self._managed.isdisjoint(wanted.limits)

    async def ask(self, verb: str, arguments: dict[str, Any]) -> Any:
        """The decoded answer to a verb. Raises ExtenderError."""
        url = f"{self._url}/{verb}"
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=self.config.http_timeout))
        options: dict[str, Any] = {} if self._context is None else {"ssl": self._context}
        if self._server_name:
            options["server_hostname"] = self._server_name
        headers = {"Content-Type": "application/json"}
        try:
            async with self._session.post(url, data=orjson.dumps(arguments), headers=headers, **options) as response:
                if response.status != 200:
                    raise ExtenderError(f"extender {url} answered with status {response.status}")
                body = bytearray()
                async for chunk in response.content.iter_any():
                    body += chunk
                    if len(body) > MOST:
                        raise ExtenderError(f"extender {url} answered with more than {MOST >> 20} MiB")
            return orjson.loads(body)
        except TimeoutError:
            raise ExtenderError(f"extender {url} did not answer within {self.config.http_timeout:g} s") from None
        except aiohttp.ClientError as error:
            raise ExtenderError(f"extender {url} cannot be reached: {error}") from error
        except orjson.JSONDecodeError as error:
            raise ExtenderError(f"extender {url} answered with something that is no JSON: {error}") from error
        except (OSError, ValueError) as error:  # a name that cannot be resolved, a header that cannot be read
            raise ExtenderError(f"extender {url} cannot be asked: {error}") from error

    async def close(self) -> None:
        """Close the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()


def _context(config: Config, where: str) -> ssl.SSLContext:
    tls = config.tls_config or ExtenderTLSConfig()
    ca = _pem(tls.ca_data, tls.ca_file)
    # kube-scheduler: enableHTTPS without an authority does not check the server's certificate.
    insecure = tls.insecure or (config.enable_https and ca is None)
    client = ClientConfig(
        server=config.url_prefix, ca=ca, cert=_pem(tls.cert_data, tls.cert_file), key=_pem(tls.key_data, tls.key_file),
        insecure=insecure, source=where,
    )  # fmt: skip
    try:
        return build_context(client)
    except KubeConfigError as error:
        raise ConfigurationError(f"{where}: {error}") from error


def _pem(data: str, file: str) -> Pem | None:
    if data:
        return Pem(data=base64.b64decode(data))
    return Pem(path=str(Path(file))) if file else None
