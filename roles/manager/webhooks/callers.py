"""Who may ask for reviews: everybody who reaches the port, or only those whose certificate an authority has signed (MGR-WH-01)."""

from __future__ import annotations

import ssl
from collections.abc import Collection

from koord.kube.credentials import KubeConfigError
from koord.kube.tls import authorities
from koord.process.errors import ConfigurationError
from koord.process.requests import Request
from koord.process.serving import certificate_user

FLAG, NAMES_FLAG = "--webhook-client-ca-file", "--webhook-client-allowed-names"


class Callers:
    """The API servers, by their client certificates. Without a `ca_file` nobody is asked for one.

    `names` are the common names that are accepted, all of them where it is empty. Raises ConfigurationError for a file without
    certificates.
    """

    def __init__(self, ca_file: str = "", names: Collection[str] = ()) -> None:
        self._file, self._names = ca_file, frozenset(names)
        if self._names and not ca_file:
            raise ConfigurationError(f"{NAMES_FLAG} says whose certificates are accepted; {FLAG} must say who signs them")
        try:
            self._authorities = self._read()
        except ValueError as error:
            raise ConfigurationError(str(error)) from None

    def renew(self) -> bool:
        """Look at the file again: whether there are other authorities. Raises ValueError; the ones of before then stay."""
        found = self._read()
        changed, self._authorities = found != self._authorities, found
        return changed

    def context(self) -> ssl.SSLContext:
        """For listening, without a certificate of our own yet."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self._authorities:
            _load(context, self._authorities)
            context.verify_mode = ssl.CERT_OPTIONAL  # health is told to everybody
        return context

    def shows_certificate(self, request: Request) -> bool:
        """Whether the caller has shown a certificate of the authorities."""
        return bool(self._authorities) and _common_name(request) is not None

    def refusal(self, request: Request) -> str:
        """Why a review is not answered, "" when it is."""
        if not self._authorities:
            return ""
        name = _common_name(request)
        if name is None:
            return f"reviews are answered only to callers with a client certificate of the authority that {FLAG} names"
        if self._names and name not in self._names:
            return f"the client certificate is for {name!r}, which {NAMES_FLAG} does not name"
        return ""

    def _read(self) -> str:
        if not self._file:
            return ""
        try:
            with open(self._file, "rb") as file:
                text = authorities(file.read(), self._file)
            _load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), text)
        except KubeConfigError:
            raise ValueError(f"{FLAG}: {self._file} has no certificates in PEM form (-----BEGIN CERTIFICATE-----)") from None
        except (OSError, ValueError, TypeError) as error:  # ssl.SSLError is an OSError; TypeError: not ASCII inside
            reason = getattr(error, "strerror", None) or error
            raise ValueError(f"{FLAG}: {self._file} has no certificates in PEM form: {reason}") from None
        return text


def _load(context: ssl.SSLContext, authorities: str) -> None:
    context.load_verify_locations(cadata=authorities)
    if not context.cert_store_stats()["x509"]:
        raise ValueError("no certificate is in it")


def _common_name(request: Request) -> str | None:
    """Of the certificate that the caller showed and OpenSSL verified; None without one."""
    found = request.transport.get_extra_info("peercert") if request.transport is not None else None
    return str(certificate_user(found)["username"]) if found else None
