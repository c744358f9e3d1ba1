"""HTTP to the API server: a keep-alive pool, credentials, pacing, retries."""

from __future__ import annotations

import re
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from urllib.parse import urlencode

from koord import seams
from koord.kube import errors
from koord.kube.config import ClientConfig
from koord.kube.connection import Barred, Body, Lost, NotSent
from koord.kube.credentials import CredentialError, KubeConfigError
from koord.kube.http1 import Response
from koord.kube.leadership import Fence, Fresh
from koord.kube.pool import Pool
from koord.kube.ratelimit import Backoff, Priority, RateLimiter
from koord.kube.servertime import ServerTime
from koord.kube.tls import TlsSource
from koord.version import VERSION

ATTEMPTS = 5  # tries of one request, the first included
CONNECT_TIMEOUT = 5.0  # seconds
REQUEST_TIMEOUT = 60.0  # seconds for one try
MAX_RETRY_AFTER = 30.0  # seconds; a longer request to wait is cut to this
READS = frozenset({"GET", "HEAD"})
_PLAIN = re.compile(r"[A-Za-z0-9_.~-]*")
POOL = 100  # connections for requests; watches have their own

Observer = Callable[[str, int, float], None]
"""Told of each finished try: method, HTTP status (0: no answer), seconds."""


class Transport:
    """Sends requests for one configuration. Belongs to one event loop; `close` it in the end."""

    def __init__(
        self,
        config: ClientConfig,
        *,
        qps: float | None = None,
        burst: int | None = None,
        role: str = "",
        observer: Observer | None = None,
        patience: float | None = None,
    ) -> None:
        self.config = config
        self.patience = patience
        self.limiter = RateLimiter(qps, burst)
        self.role = role
        self.observer = observer
        self.time = ServerTime()
        self._tls = TlsSource(config)
        self._headers = (
            ("Accept", "application/json"),
            ("Accept-Encoding", "identity"),
            ("User-Agent", f"koord/{VERSION}" + (f" ({role})" if role else "")),
            *config.headers,
        )
        self._head = "".join(f"{name}: {value}\r\n" for name, value in self._headers)
        self._pool: Pool | None = None
        self._closed = False

    async def close(self) -> None:
        """Close all connections; requests in flight fail."""
        self._closed = True
        if self._pool is not None:
            await self._pool.close()

    @staticmethod
    def _target(path: str, params: Mapping[str, str] | None = None) -> str:
        """The request target of an (already quoted) path. Raises ValueError for a path that could smuggle in something else."""
        if not path.startswith("/") or not path.isascii() or not path.isprintable() or " " in path:
            raise ValueError(f"{path!r} is no request path")
        if not params:
            return path
        plain = _PLAIN.fullmatch  # hardly a parameter needs quoting, and every watch has five
        if all(map(plain, params.values())) and all(map(plain, params)):
            return f"{path}?{'&'.join(map('='.join, params.items()))}"
        return f"{path}?{urlencode(params)}"

    async def _identity(self, *, renew: bool) -> tuple[str | None, ssl.SSLContext | None]:
        """The Authorization header and the TLS context of the next request."""
        try:
            authorization = await self.config.credentials.authorization(renew=renew)
            context = self._tls.context()
        except (CredentialError, KubeConfigError) as error:
            raise errors.Unreachable(str(error)) from error
        if authorization and not (authorization.isprintable() and authorization.isascii()):
            raise errors.Unreachable("the credentials contain characters that no header can carry")
        return authorization, context

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        idempotent: bool | None = None,
        retry_429: bool = True,
        timeout: float = REQUEST_TIMEOUT,
        fence: Fence | None = None,
        priority: Priority = Priority.STATUS,
    ) -> Response:
        """Send a request and read the answer, whatever its status.

        A try that never reached the server is repeated; one that was answered 429, or 5xx with Retry-After, too; one that
        got lost, or was answered 5xx, only if the request is idempotent (by default GET, PUT and DELETE). After a 401 the
        credentials are renewed once. Raises Unreachable when no try got an answer, or none within the client's `patience`.

        A write passes the `fence` in the step in which its bytes go out, at every try. It is not tried again later than the
        fence is known to be held: the last answer stands then. Raises NotLeading, and Unreachable for one that only got too old.
        """
        if idempotent is None:
            idempotent = method in ("GET", "PUT", "DELETE", "HEAD")
        if method in READS:
            fence = None
        target = self._target(path, params)
        backoff = Backoff(0.1, 5.0)
        renewed = renew = False
        lost: Lost | None = None
        until = float("inf") if self.patience is None else seams.monotonic() + self.patience
        for attempt in range(1, ATTEMPTS + 1):
            await self.limiter.acquire(priority)
            timeout = min(timeout, max(until - seams.monotonic(), 0.1))
            try:
                response = await self._once(
                    method, target, body, content_type, timeout=timeout, renew=renew, fence=fence, priority=priority
                )
            except Barred:
                if lost is not None:  # an earlier try may have taken place
                    raise errors.Unreachable(f"{self.config.server}: {lost}") from None
                if isinstance(fence, Fresh) and fence.outdated:
                    raise errors.Unreachable(f"{method} {path}: not sent, it could not be in time") from None
                raise errors.NotLeading(f"{method} {path}") from None
            except (NotSent, Lost) as error:
                if isinstance(error, Lost):
                    lost = error
                pause = backoff.next()
                last = attempt == ATTEMPTS or seams.monotonic() + pause >= until or (isinstance(error, Lost) and not idempotent)
                if last or _too_late(fence, pause):
                    raise errors.Unreachable(f"{self.config.server}: {error}") from error.__cause__
            else:
                if response.status == 401 and not renewed and attempt < ATTEMPTS:
                    renewed = renew = True
                    continue
                wait = _retry_pause(response, idempotent=idempotent, retry_429=retry_429)
                if wait is None or attempt == ATTEMPTS:
                    return response
                pause = wait or backoff.next()
                if _too_late(fence, pause) or seams.monotonic() + pause >= until:
                    return response
            renew = False
            await seams.sleep(pause)
        raise AssertionError("unreachable")

    async def _once(
        self,
        method: str,
        target: str,
        body: bytes | None,
        content_type: str,
        *,
        timeout: float,
        renew: bool,
        fence: Fence | None,
        priority: Priority,
    ) -> Response:
        began, status = seams.monotonic(), 0
        try:
            authorization, context = await self._identity(renew=renew)
            data = self._bytes(method, target, authorization, body, content_type)
            response = await self._connections().request(data, context, timeout, fence=fence, priority=priority)
            status = response.status
            self.time.answered(response.headers.get("date"), began)
            return response
        finally:
            if self.observer is not None:
                self.observer(method, status, seams.monotonic() - began)

    def _connections(self) -> Pool:
        pool = self._pool
        if pool is None:
            if self._closed:
                raise NotSent("the client is closed")
            config = self.config
            pool = self._pool = Pool(
                config.server, limit=POOL, connect_timeout=CONNECT_TIMEOUT, server_name=config.tls_server_name, proxy=config.proxy
            )
        return pool

    def _bytes(self, method: str, target: str, authorization: str | None, body: bytes | None = None, content_type: str = "") -> bytes:
        """A request as it goes out. Raises NotSent if the client is closed."""
        pool = self._connections()
        head = f"{method} {pool.prefix}{target} HTTP/1.1\r\nHost: {pool.host}\r\n{pool.headers}{self._head}"
        if authorization:
            head += f"Authorization: {authorization}\r\n"
        if body is None:
            return f"{head}\r\n".encode("latin-1")
        return f"{head}Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n".encode("latin-1") + body

    @asynccontextmanager
    async def stream(self, path: str, params: Mapping[str, str]) -> AsyncIterator[Body]:
        """A GET whose answer is read as it comes.

        Raises ApiError for a status other than 200 and Unreachable when the connection fails, also while reading.
        """
        await self.limiter.acquire()
        target = self._target(path, params)
        try:
            for renew in (False, True):
                authorization, context = await self._identity(renew=renew)
                data = self._bytes("GET", target, authorization)
                async with self._connections().stream(data, context, REQUEST_TIMEOUT) as body:
                    if body.status == 401 and not renew:
                        await body.read(REQUEST_TIMEOUT)
                        continue
                    if body.status != 200:
                        raise errors.from_response(body.status, await body.read(REQUEST_TIMEOUT), retry_after=retry_after(body.headers))
                    yield body
                    return
        except (NotSent, Lost) as error:
            raise errors.Unreachable(f"{self.config.server}: {error}") from error.__cause__


def _too_late(fence: Fence | None, pause: float) -> bool:
    """Whether the next try would come when the fence may be held no more."""
    return fence is not None and pause >= fence.remaining


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds of a Retry-After header (the API server sends whole seconds, never a date)."""
    text = headers.get("retry-after", "")
    return float(text) if text.isdecimal() else None


def _retry_pause(response: Response, *, idempotent: bool, retry_429: bool) -> float | None:
    """None if the answer stands; else the seconds to wait before the next try, 0 for the usual back-off."""
    if response.status != 429 and response.status < 500:
        return None
    asked = retry_after(response.headers)
    if response.status == 429:
        return min(asked or 0.0, MAX_RETRY_AFTER) if retry_429 else None
    if asked is not None and response.status == 503:
        return min(asked, MAX_RETRY_AFTER)
    return 0.0 if idempotent and response.status in (500, 502, 503, 504) else None
