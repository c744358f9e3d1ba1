"""What identifies a client: tokens, token files, passwords, exec plugins; each a small object that gives the header."""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from koord import seams
from koord.config.errors import ConfigError
from koord.config.redact import redacted_output

EXEC_TIMEOUT = 30.0  # seconds that a credential plugin may take
TOKEN_FILE_PERIOD = 60.0  # seconds between two looks at a token file (projected tokens are rotated hourly)
EXPIRY_MARGIN = 30.0  # seconds before its expiry that a credential is renewed
EXEC_RETRY = 5.0  # seconds after which a plugin that failed ahead of that time is run again


class KubeConfigError(ConfigError):
    """A kubeconfig, or what it points to, cannot be used: `path` is the file, the message says what is accepted."""


class CredentialError(Exception):
    """Credentials could not be obtained just now (a plugin failed, a token file is gone); trying again may help."""


class Credentials:
    """Gives the Authorization header of each request. By itself: anonymous, or identified by a client certificate alone."""

    async def authorization(self, *, renew: bool = False) -> str | None:
        """Header value or None; `renew` after the server answered 401. Raises CredentialError."""
        return None

    def client_certificate(self) -> tuple[bytes, bytes] | None:
        """PEM certificate and key that came with the credentials, if any."""
        return None

    def for_another_loop(self) -> Credentials:
        """Equal credentials that another event loop may use at the same time."""
        return copy.copy(self)


@dataclass(frozen=True)
class StaticHeader(Credentials):
    """A token or a password that stands in the kubeconfig."""

    header: str = field(repr=False)

    @classmethod
    def bearer(cls, token: str) -> StaticHeader:
        """`Bearer <token>`."""
        return cls(f"Bearer {token}")

    @classmethod
    def basic(cls, username: str, password: str) -> StaticHeader:
        """HTTP basic authentication."""
        return cls("Basic " + base64.b64encode(f"{username}:{password}".encode()).decode())

    async def authorization(self, *, renew: bool = False) -> str | None:
        """The header, always the same."""
        return self.header


@dataclass
class TokenFile(Credentials):
    """A token in a file that somebody else renews. The last token read stays in use while the file cannot be read."""

    path: str
    clock: Callable[[], float] = seams.monotonic
    _header: str = field(default="", repr=False)
    _read_at: float = float("-inf")

    async def authorization(self, *, renew: bool = False) -> str | None:
        """`Bearer` with the file's content, read again once a minute or on demand."""
        now = self.clock()
        if renew or now - self._read_at >= TOKEN_FILE_PERIOD:
            try:
                token = Path(self.path).read_text(encoding="utf-8").strip()  # noqa: ASYNC240 - a few bytes of a local file
            except (OSError, UnicodeDecodeError) as error:
                if not self._header:
                    raise CredentialError(f"token file {self.path}: {error}") from error
            else:
                if token:
                    self._header = f"Bearer {token}"
                    self._read_at = now
                elif not self._header:
                    raise CredentialError(f"token file {self.path} is empty")
        return self._header


@dataclass
class ExecPlugin(Credentials):
    """A credential plugin (`users[].user.exec`): run when needed, its answer kept until it expires."""

    source: str
    command: str
    api_version: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cluster: Mapping[str, Any] | None = field(default=None, repr=False)
    directory: str = ""
    install_hint: str = ""
    wall_clock: Callable[[], float] = seams.now
    _header: str | None = field(default=None, repr=False)
    _certificate: tuple[bytes, bytes] | None = field(default=None, repr=False)
    _expires: float = float("-inf")
    _again: float = float("-inf")
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def authorization(self, *, renew: bool = False) -> str | None:
        """Header from the plugin's `status.token`, None if it gave a certificate only."""
        stale = self._header
        async with self._lock:
            if renew and self._header == stale:  # nobody renewed it while we waited
                self._expires = float("-inf")
            if self.wall_clock() >= min(self._expires, max(self._expires - EXPIRY_MARGIN, self._again)):
                try:
                    self._use(await self._run())
                except CredentialError:
                    self._again = self.wall_clock() + EXEC_RETRY
                    if self.wall_clock() >= self._expires:
                        raise  # else it was renewed ahead of time, and the last answer does for now
        return self._header

    def client_certificate(self) -> tuple[bytes, bytes] | None:
        """The certificate and key of the last answer."""
        return self._certificate

    def for_another_loop(self) -> Credentials:
        """A plugin of its own, that begins with the last answer of this one."""
        return replace(self, _lock=asyncio.Lock())

    def _use(self, status: Mapping[str, Any]) -> None:
        token, certificate, key = status.get("token"), status.get("clientCertificateData"), status.get("clientKeyData")
        if not token and not (certificate and key):
            raise CredentialError(f"{self.command}: the answer has neither status.token nor clientCertificateData and clientKeyData")
        self._header = f"Bearer {token}" if token else None
        self._certificate = (certificate.encode(), key.encode()) if certificate and key else None
        expiry = status.get("expirationTimestamp")
        try:
            self._expires = datetime.fromisoformat(expiry.replace("Z", "+00:00")).timestamp() if expiry else float("inf")
        except (ValueError, AttributeError):
            raise CredentialError(f"{self.command}: expirationTimestamp {expiry!r} is no RFC 3339 time") from None

    async def _run(self) -> Mapping[str, Any]:
        spec: dict[str, Any] = {"interactive": False}
        if self.cluster is not None:
            spec["cluster"] = self.cluster
        info = json.dumps({"apiVersion": self.api_version, "kind": "ExecCredential", "spec": spec})
        command = self.command
        if os.sep in command and not os.path.isabs(command):
            command = os.path.join(self.directory, command)
        try:
            process = self._start(command, info)
        except OSError as error:
            hint = f" ({self.install_hint.strip()})" if self.install_hint else ""
            raise CredentialError(f"credential plugin {command}: {error.strerror}{hint}") from error
        try:
            out, err = await asyncio.wait_for(seams.to_thread(process.communicate), EXEC_TIMEOUT)
        except TimeoutError:
            raise CredentialError(f"credential plugin {command}: no answer within {EXEC_TIMEOUT:.0f} s") from None
        finally:
            if process.returncode is None:  # what it started may hold its output open, too: the thread above waits for that
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        if process.returncode:
            known = [*self.env.values(), *self.args] if err else []
            detail = redacted_output(err.decode("utf-8", "replace").strip(), known)[-300:]
            raise CredentialError(f"credential plugin {command}: exit status {process.returncode}" + (f": {detail}" if detail else ""))
        return self._status(command, out)

    def _start(self, command: str, info: str) -> subprocess.Popen[bytes]:
        # Not asyncio's own way: where its start is cancelled, it waits for ever for a process that ended meanwhile.
        return subprocess.Popen(
            [command, *self.args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **self.env, "KUBERNETES_EXEC_INFO": info},
            process_group=0,
        )

    def _status(self, command: str, out: bytes) -> Mapping[str, Any]:
        try:
            answer = json.loads(out)
        except ValueError as error:
            raise CredentialError(f"credential plugin {command}: the answer is no JSON: {error}") from None
        status = answer.get("status") if isinstance(answer, dict) and answer.get("kind") == "ExecCredential" else None
        if not isinstance(status, dict):
            raise CredentialError(f"credential plugin {command}: the answer is no ExecCredential with a status")
        if answer.get("apiVersion") != self.api_version:
            raise CredentialError(
                f"credential plugin {command}: answered apiVersion {answer.get('apiVersion')!r}, the kubeconfig says {self.api_version!r}"
            )
        return status


@dataclass
class AuthProvider(Credentials):
    """A legacy `auth-provider` (oidc, …): handled by the official client's loader, which is imported only here."""

    kubeconfig: str
    context: str
    _header: str | None = None
    _asked_at: float = float("-inf")

    async def authorization(self, *, renew: bool = False) -> str | None:
        """The loader's header, asked anew every five minutes and after a 401."""
        now = seams.monotonic()
        if renew or now - self._asked_at > 300:
            try:
                self._header = await seams.to_thread(self._load)
            except Exception as error:  # the loader raises whatever its plugins raise
                raise CredentialError(f"auth-provider of {self.kubeconfig}: {error}") from error
            self._asked_at = now
        return self._header

    def _load(self) -> str | None:
        from kubernetes import client, config

        configuration = client.Configuration()
        load: Callable[..., None] = config.load_kube_config
        load(self.kubeconfig, context=self.context, client_configuration=configuration, persist_config=False)
        header = configuration.get_api_key_with_prefix("authorization")
        return header if isinstance(header, str) else None
