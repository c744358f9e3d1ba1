"""What an HTTPS listener needs, from the flags that Kubernetes components share."""

from __future__ import annotations

import ssl
import tempfile
from pathlib import Path
from typing import Protocol

from koord.kube.tls import authorities
from koord.process.certificates import ensure
from koord.process.errors import ConfigurationError, UsageError


class Listening(Protocol):
    """The part of a role's serving options that is about TLS; `cert_dir` "" keeps a made certificate only as long as the process lives."""

    @property
    def address(self) -> str: ...
    @property
    def cert_dir(self) -> str: ...
    @property
    def cert_file(self) -> str: ...
    @property
    def key_file(self) -> str: ...
    @property
    def min_version(self) -> str: ...
    @property
    def cipher_suites(self) -> tuple[str, ...]: ...
    @property
    def client_ca_file(self) -> str: ...


def tls_context(options: Listening, client_ca: str = "") -> ssl.SSLContext:
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


def _load_certificate(context: ssl.SSLContext, options: Listening) -> None:
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
