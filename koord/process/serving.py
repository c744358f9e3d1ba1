"""HTTPS for a role's ports, and who may ask there (SCH-FW-02, BEY-SEC-01). As kube-scheduler: tokens are reviewed by the API server
(TokenReview), client certificates by an authority, and access by SubjectAccessReview on the path."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import ssl
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from koord import seams
from koord.kube.errors import ApiError
from koord.kube.tls import authorities
from koord.process.certificates import CHECK, RENEW_DAYS, SERVER_DAYS, ensure
from koord.process.errors import ConfigurationError, UsageError
from koord.process.requests import Handler, Middleware, Request, Response

if TYPE_CHECKING:
    from koord.kube.config import ClientConfig

log = logging.getLogger(__name__)

#: The API server's pod proxy takes the caller's Authorization away; what stands here instead counts the same.
TOKEN_HEADER = "X-Koord-Authorization"
HEALTH_PATHS = ("/healthz", "/readyz", "/livez")
#: A role's own requests must not wait for strangers' tokens: reviews have a client of their own, paced by these.
REVIEW_QPS, REVIEW_BURST = 10.0, 20

_REMEMBERED = 1024
_REVIEWS = 16  # at a time; whoever comes beyond that is told to come again
_REVIEW_SECONDS = 5.0
_RELOAD = 60.0  # seconds between two looks at certificate files
_ANONYMOUS = {"username": "system:anonymous", "groups": ["system:unauthenticated"]}
_UNAUTHORIZED = {"WWW-Authenticate": "Bearer"}
_LOOKUP = ("kube-system", "extension-apiserver-authentication")
_VERBS = {"GET": "get", "HEAD": "head", "POST": "post", "PUT": "put", "PATCH": "patch", "DELETE": "delete"}

User = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Serving:
    """The HTTPS flags. TTLs in seconds; `cert_dir` "" keeps a made certificate only as long as the process lives."""

    address: str = "0.0.0.0"
    port: int = 0
    cert_dir: str = ""
    cert_file: str = ""
    key_file: str = ""
    min_version: str = "VersionTLS12"
    cipher_suites: tuple[str, ...] = ()
    client_ca_file: str = ""
    skip_lookup: bool = False
    tolerate_lookup_failure: bool = True
    token_ttl: float = 10.0
    allowed_paths: tuple[str, ...] = HEALTH_PATHS
    allowed_ttl: float = 10.0
    denied_ttl: float = 10.0


async def client_authority(client: Any, options: Serving) -> str:
    """The cluster's authority of client certificates (PEM), unless the flags forbid looking. Raises ConfigurationError."""
    if options.skip_lookup:
        return ""
    try:
        return await _look_up(client)
    except ApiError as error:
        where = "/".join(_LOOKUP)
        if options.tolerate_lookup_failure:
            log.info("no client authority from ConfigMap %s (%s): only tokens are reviewed", where, error)
            return ""
        raise ConfigurationError(f"--authentication-skip-lookup=false: ConfigMap {where} cannot be read: {error}") from error


async def follow_authority(client: Any, options: Serving, source: Source) -> None:
    """Trust whom the cluster trusts by now; while that cannot be read, whom it trusted before."""
    while not options.skip_lookup:
        await seams.sleep(_RELOAD)
        with suppress(ApiError):
            source.client_ca = await _look_up(client)


async def _look_up(client: Any) -> str:
    from koord.api.kinds import CONFIGMAPS

    namespace, name = _LOOKUP
    found = await client.get(CONFIGMAPS, name, namespace)
    return str((found.get("data") or {}).get("client-ca-file") or "")


class Kept:
    """Answers by key for a while; the oldest go first."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._answers: dict[Any, tuple[float, Any]] = {}

    def get(self, key: Any) -> Any:
        """The answer, None when there is none that still holds."""
        until, answer = self._answers.get(key, (0.0, None))
        return answer if until > self._clock() else None

    def put(self, key: Any, answer: Any, ttl: float) -> None:
        """Keep an answer for `ttl` seconds."""
        self._answers.pop(key, None)
        self._answers[key] = (self._clock() + ttl, answer)
        if len(self._answers) > _REMEMBERED:
            del self._answers[next(iter(self._answers))]


class Gate:
    """Lets requests through, or answers 401, 403 or (when the API server cannot be asked) 503.

    `tokens` and `access` are clients for the two kinds of review; without them nobody passes but to the open paths.
    """

    def __init__(self, options: Serving, tokens: Any = None, access: Any = None, clock: Callable[[], float] = seams.monotonic) -> None:
        self._options = options
        self._tokens = tokens
        self._access = access
        self._users = Kept(clock)
        self._verdicts = Kept(clock)
        self._reviewing = 0

    def middleware(self) -> Middleware:
        """Asks the gate before the handler."""

        async def guard(request: Request, handler: Handler) -> Response:
            refusal = await self.refusal(request)
            return refusal if refusal is not None else await handler(request)

        return guard

    async def refusal(self, request: Request) -> Response | None:
        """None when the request may pass."""
        if self.is_open(request.path):
            return None
        if self._tokens is None or self._access is None:
            return Response(status=403, text="Forbidden: there is no API server to ask who may see this\n")
        if self._reviewing >= _REVIEWS:
            return Response(status=503, text="too many requests are being judged\n", headers={"Retry-After": "1"})
        self._reviewing += 1
        try:
            async with asyncio.timeout(_REVIEW_SECONDS):
                return await self._judged(request)
        except (ApiError, OSError, TimeoutError) as error:
            log.warning("%s %s: the request cannot be judged: %s", request.method, request.path, error or type(error).__name__)
            return Response(status=503, text="the API server cannot be asked whether this is allowed\n")
        finally:
            self._reviewing -= 1

    async def _judged(self, request: Request) -> Response | None:
        user = await self._user(request)
        if user is None:
            return Response(status=401, text="Unauthorized\n", headers=_UNAUTHORIZED)
        verb = _VERBS.get(request.method, request.method.lower())
        if user is not _ANONYMOUS and await self._may(user, verb, request.path):
            return None
        return Response(status=403, text=f'Forbidden: user "{user.get("username", "")}" cannot {verb} path "{request.path}"\n')

    def is_open(self, path: str) -> bool:
        """Whether everybody may ask for a path."""
        return any(path.startswith(allowed[:-1]) if allowed.endswith("*") else path == allowed for allowed in self._options.allowed_paths)

    async def _user(self, request: Request) -> User | None:
        """The token's user, else the certificate's, else nobody in particular; None for a token that is not good."""
        given = request.headers.get("Authorization") or request.headers.get(TOKEN_HEADER) or ""
        scheme, _, token = given.partition(" ")
        if scheme.lower() == "bearer" and token.strip():
            return await self._token_user(token.strip())
        certificate = request.transport.get_extra_info("peercert") if request.transport is not None else None
        user = certificate_user(certificate) if certificate else _ANONYMOUS
        return user if user["username"] != _ANONYMOUS["username"] else _ANONYMOUS  # groups without a name are nobody's

    async def _token_user(self, token: str) -> User | None:
        """Whom the API server knows by a token, None for nobody; both answers are kept for a while."""
        from koord.api.kinds import TOKENREVIEWS

        key = hashlib.sha256(token.encode()).digest()
        known: User | None = self._users.get(key)
        if known is None:
            body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
            status = (await self._tokens.create(TOKENREVIEWS, body)).get("status") or {}
            known = (status.get("user") or _ANONYMOUS) if status.get("authenticated") else {}
            self._users.put(key, known, self._options.token_ttl)
        return known or None

    async def _may(self, user: User, verb: str, path: str) -> bool:
        from koord.api.kinds import SUBJECTACCESSREVIEWS

        # an authorizer may look at all of it: a token can be narrower than its user (scopes are in `extra`)
        extra = tuple(sorted((name, tuple(values or ())) for name, values in (user.get("extra") or {}).items()))
        key = (user.get("username"), tuple(user.get("groups") or ()), user.get("uid"), extra, verb, path)
        known: bool | None = self._verdicts.get(key)
        if known is not None:
            return known
        spec = {
            "user": user.get("username", ""), "groups": list(user.get("groups") or ()), "uid": user.get("uid", ""),
            "extra": user.get("extra") or {}, "nonResourceAttributes": {"path": path, "verb": verb},
        }  # fmt: skip
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        allowed = bool(((await self._access.create(SUBJECTACCESSREVIEWS, body)).get("status") or {}).get("allowed"))
        self._verdicts.put(key, allowed, self._options.allowed_ttl if allowed else self._options.denied_ttl)
        return allowed


def certificate_user(certificate: Mapping[str, Any]) -> User:
    """Common name as the user, organizations as the groups."""
    pairs = [pair for part in certificate.get("subject", ()) for pair in part]
    name = next((value for key, value in pairs if key == "commonName"), "")
    groups = [value for key, value in pairs if key == "organizationName"]
    return {"username": name or "system:anonymous", "groups": [*groups, "system:authenticated"]}


def gate_for(stack: AsyncExitStack, options: Serving, target: ClientConfig, access: ClientConfig | None = None) -> Gate:
    """A gate that asks the API server `target` (for access `access`, if another); its clients are closed with the stack."""
    from koord.kube.client import Client

    def client(config: ClientConfig) -> Client:
        made = Client(config, qps=REVIEW_QPS, burst=REVIEW_BURST, role="koord-gate")
        stack.push_async_callback(made.close)
        return made

    tokens = client(target)
    return Gate(options, tokens, client(access) if access is not None else tokens)


def tls_source(options: Serving, client_ca: str = "") -> Source:
    """What a port needs for TLS, kept up to date while the process lives: given files when they change, a certificate of our own before it
    ends.

    Given files are read now, a certificate of our own is made when the first client wants it: most koordlets never need theirs. Raises
    ConfigurationError.
    """
    source = Source(options, client_ca)
    if options.cert_file or options.key_file or options.client_ca_file or options.cipher_suites or options.cert_dir:
        source()
    return source


class Source:
    """One TLS context, replaced in time. `client_ca` may be set anew (PEM)."""

    def __init__(self, options: Serving, client_ca: str) -> None:
        self._options, self.client_ca = options, client_ca
        self._context: ssl.SSLContext | None = None
        self._looked = self._loaded = 0.0
        self._stamp: object = None

    def __call__(self) -> ssl.SSLContext:
        now = seams.monotonic()
        if self._context is None:
            return self._load(now)
        if now - self._looked >= _RELOAD:
            self._looked = now
            if self._due(now):
                try:
                    return self._load(now)
                except ConfigurationError as error:  # half of it is written: the next look finds it whole
                    log.warning("certificate and client authorities stay as they were: %s", error)
        return self._context

    def _due(self, now: float) -> bool:
        """Whether there may be something else: what is given changed, one of our own is old; what lies in a directory knows itself."""
        if self._given() != self._stamp:
            return True
        lasts = CHECK if self._options.cert_dir else (SERVER_DAYS - RENEW_DAYS) * 86400
        return not self._options.cert_file and now - self._loaded >= lasts

    def _given(self) -> object:
        files = filter(None, (self._options.cert_file, self._options.key_file, self._options.client_ca_file))
        try:
            return self.client_ca, *((facts.st_mtime_ns, facts.st_ino) for facts in map(os.stat, files))
        except OSError:
            return self._stamp

    def _load(self, now: float) -> ssl.SSLContext:
        stamp = self._given()
        context = self._context = tls_context(self._options, self.client_ca)
        self._stamp, self._looked, self._loaded = stamp, now, now
        return context


def tls_context(options: Serving, client_ca: str = "") -> ssl.SSLContext:
    """What the listener needs; `client_ca` is PEM text of authorities of client certificates. Raises ConfigurationError."""
    if bool(options.cert_file) != bool(options.key_file):
        raise UsageError("--tls-cert-file and --tls-private-key-file belong together: give both or none")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    modern = options.min_version == "VersionTLS13"
    context.minimum_version = ssl.TLSVersion.TLSv1_3 if modern else ssl.TLSVersion.TLSv1_2
    try:
        if options.cipher_suites:
            context.set_ciphers(_ciphers(options.cipher_suites))
        _load_certificate(context, options)
        trusted = authorities(client_ca.encode(), "ConfigMap extension-apiserver-authentication", "client-ca-file") if client_ca else ""
        if options.client_ca_file:
            trusted += authorities(Path(options.client_ca_file).read_bytes(), options.client_ca_file, "--client-ca-file")
        if trusted:
            context.load_verify_locations(cadata=trusted)
            context.verify_mode = ssl.CERT_OPTIONAL
    except (OSError, ssl.SSLError, ValueError, TypeError) as error:  # TypeError: a certificate that is not ASCII inside
        where = options.cert_file or options.client_ca_file or options.cert_dir or "the made certificate"
        raise ConfigurationError(f"--secure-port: HTTPS cannot be served ({where}): {error}") from error
    return context


def _load_certificate(context: ssl.SSLContext, options: Serving) -> None:
    """Put the certificate of the options, or one made here, into a context. Raises OSError, SSLError."""
    if options.cert_file:
        context.load_cert_chain(options.cert_file, options.key_file)
        return
    if options.cert_dir:
        made = ensure(Path(options.cert_dir), options.address)
        context.load_cert_chain(made.cert_file, made.key_file)
        return
    with tempfile.TemporaryDirectory(prefix="koord-") as directory:
        made = ensure(Path(directory), options.address)
        context.load_cert_chain(made.cert_file, made.key_file)


def _ciphers(names: tuple[str, ...]) -> str:
    """OpenSSL's names of TLS 1.2 suites; those of TLS 1.3 are always on."""
    found = []
    for name in names:
        if not name.startswith("TLS_"):
            raise UsageError(f"--tls-cipher-suites: {name!r} is no IANA name such as TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256")
        if "_WITH_" in name:
            short = name.removeprefix("TLS_").removeprefix("RSA_WITH_").replace("_WITH", "").replace("3DES_EDE_CBC", "DES_CBC3")
            short = short.replace("AES_", "AES").replace("_POLY1305_SHA256", "_POLY1305").replace("_CBC_", "_").replace("_", "-")
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).set_ciphers(short)
            except ssl.SSLError:
                raise UsageError(f"--tls-cipher-suites: this machine's OpenSSL has no {name}") from None
            found.append(short)
    return ":".join(found) or "DEFAULT"
