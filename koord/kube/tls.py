"""TLS contexts from PEM texts and files, renewed when the files change."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from koord import seams
from koord.kube.config import ClientConfig, Pem
from koord.kube.credentials import KubeConfigError

__all__ = ["Pem", "TlsSource", "build_context"]

RECHECK = 60.0  # seconds between two looks at certificate files


@contextmanager
def _memory_file(data: bytes) -> Iterator[str]:
    """A path that reads as these bytes: OpenSSL takes certificates by path only, and a key must not touch the disk."""
    descriptor = os.memfd_create("koord-pem", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, data)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


class TlsSource:
    """Gives the TLS context of a client: the same object until a file or the plugin's certificate changes."""

    def __init__(self, config: ClientConfig, clock: Callable[[], float] = seams.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._context: ssl.SSLContext | None = None
        self._stamp: object = None
        self._stamp_plugin: tuple[bytes, bytes] | None = None
        self._checked_at = float("-inf")

    def context(self) -> ssl.SSLContext | None:
        """None for a plain http server. Raises KubeConfigError; while a renewed file is unusable the last context stays."""
        config = self._config
        if not config.server.startswith("https:"):
            return None
        now = self._clock()
        plugin = config.credentials.client_certificate()
        if self._context is not None and now - self._checked_at < RECHECK and self._stamp_plugin == plugin:
            return self._context
        stamp = tuple(pem.stamp() if pem else None for pem in (config.ca, config.cert, config.key))
        if self._context is None or stamp != self._stamp or self._stamp_plugin != plugin:
            try:
                self._context = build_context(config, plugin)
            except KubeConfigError:
                if self._context is None:
                    raise
        self._stamp, self._stamp_plugin, self._checked_at = stamp, plugin, now
        return self._context


_CERTIFICATE = re.compile(rb"-----BEGIN ((?:X509 |TRUSTED )?CERTIFICATE)-----.*?-----END \1-----", re.DOTALL)


def authorities(bundle: bytes, source: str, what: str = "certificate-authority") -> str:
    """The certificates of a bundle; what stands around them may be anything. Raises KubeConfigError if there are none."""
    found = [match.group(0) for match in _CERTIFICATE.finditer(bundle)]
    if not found:
        raise KubeConfigError(source, f"{what} has no certificate (-----BEGIN CERTIFICATE-----)")
    return b"\n".join(found).decode("latin-1") + "\n"


def build_context(config: ClientConfig, plugin: tuple[bytes, bytes] | None = None) -> ssl.SSLContext:
    """A client context for a configuration; `plugin` is a certificate and key that came from a credential plugin."""
    try:
        context = ssl.create_default_context(cadata=authorities(config.ca.read(), config.source) if config.ca else None)
    except (ssl.SSLError, ValueError, TypeError) as error:  # TypeError: a certificate that is not ASCII inside
        raise KubeConfigError(config.source, f"certificate-authority cannot be used: {error}") from error
    if config.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate, key = plugin or (config.cert and config.cert.read(), config.key and config.key.read())
    if not certificate:
        return context
    if not key and b"PRIVATE KEY" not in certificate:
        raise KubeConfigError(config.source, "client-certificate is given without client-key")
    with _memory_file(certificate + b"\n" + (key or b"")) as path:
        try:
            context.load_cert_chain(path)
        except (ssl.SSLError, OSError) as error:
            raise KubeConfigError(config.source, f"client-certificate and client-key cannot be used: {error}") from error
    return context
