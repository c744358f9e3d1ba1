"""A certificate authority and a server certificate that a process makes for itself, and renews while it lives."""

from __future__ import annotations

import datetime
import ipaddress
import logging
import os
import ssl
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from koord import seams

log = logging.getLogger("koord.process")

SERVER_DAYS, CA_DAYS = 90, 365
#: A server certificate is made anew when less than this is left of it, the authority when it would not outlive one.
RENEW_DAYS = 30
CHECK = 3600.0  # seconds between two looks at how much is left
LOOK = 60.0  # seconds between two looks at a given certificate
API_SERVER_NAMES = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "10.0.0.1")


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files of the server, and the authority that clients trust."""

    ca: bytes
    cert_file: Path
    key_file: Path

    def context(self) -> ssl.SSLContext:
        """For listening."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.cert_file, self.key_file)
        return context


def load(cert_file: Path, key_file: Path) -> Certificates:
    """The user's own certificate; clients must trust what signed it (the file itself stands in for the authority)."""
    return Certificates(cert_file.read_bytes(), cert_file, key_file)


def ensure(directory: Path, host: str, names: Iterable[str] = ()) -> Certificates:
    """Certificates under `directory` for `host`, this machine and `names`; made now unless good ones are there.

    The authority stays while it holds, so that who trusts it goes on when the server certificate is renewed. Raises PermissionError for a
    directory that others may write, and OSError.
    """
    hosts = _names(host) | set(names)
    ca_file, ca_key_file, cert_file, key_file, names_file = (
        directory / name for name in ("ca.crt", "ca.key", "server.crt", "server.key", "hosts")
    )
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    check_private(directory)
    ca, ca_key = (file.read_bytes() if file.is_file() else b"" for file in (ca_file, ca_key_file))
    listed = ",".join(sorted(hosts))
    known = names_file.is_file() and names_file.read_text() == listed and key_file.is_file()
    if known and cert_file.is_file() and days_left(cert_file.read_bytes()) > RENEW_DAYS:
        return Certificates(ca, cert_file, key_file)
    if not ca_key or days_left(ca) <= SERVER_DAYS:
        ca_key_file.unlink(missing_ok=True)
        ca, ca_key = _authority()
    cert, key = _server(ca, ca_key, hosts)
    # what is cut off in the middle is made anew: no certificate until all else is there, no key for another authority
    cert_file.unlink(missing_ok=True)
    written = ((ca_file, ca), (ca_key_file, ca_key), (names_file, listed.encode()), (key_file, key), (cert_file, cert))
    for file, content in written:
        write(file, content)
    return Certificates(ca, cert_file, key_file)


async def keep(directory: Path, host: str, context: ssl.SSLContext, names: Iterable[str] = ()) -> None:
    """Renew in time what `ensure` made, for as long as the process lives; new connections see the new certificate.

    What cannot be renewed now is tried again: there is a month for it.
    """
    wanted = tuple(names)
    while True:
        await seams.sleep(CHECK)
        try:
            made = await seams.to_thread(ensure, directory, host, wanted)
            context.load_cert_chain(made.cert_file, made.key_file)
        except (OSError, ValueError) as error:  # a full disk, say: the old one still holds for weeks
            log.warning("the certificate in %s was not renewed, the next try is in an hour: %s", directory, error)


async def follow(given: Certificates, context: ssl.SSLContext) -> None:
    """Take over the user's own certificate when it is renewed; while its files cannot be read together, the former one stays."""
    while True:
        await seams.sleep(LOOK)
        try:
            given.context()  # a key that does not fit would leave the other one without any
            context.load_cert_chain(given.cert_file, given.key_file)
        except OSError as error:
            log.warning("the certificate stays as it was: %s: %s", given.cert_file, error)


def check_private(directory: Path) -> None:
    """Raises PermissionError for a directory in which others could replace a key."""
    facts = directory.stat()
    if facts.st_uid not in (0, os.geteuid()):
        raise PermissionError(f"{directory} belongs to another user (uid {facts.st_uid}); nothing secret is kept there")
    mode = stat.S_IMODE(facts.st_mode)
    if mode & 0o022:
        raise PermissionError(f"{directory} may be written by others (mode {mode:o}); nothing secret is kept there: chmod go-w it")


def days_left(certificate: bytes) -> float:
    """Days for which a PEM certificate holds; less than 0 when it does not hold now or cannot be read."""
    from cryptography import x509

    try:
        found = x509.load_pem_x509_certificate(certificate)
    except ValueError:
        return -1.0
    now = seams.utcnow()
    if now < found.not_valid_before_utc:
        return -1.0
    return (found.not_valid_after_utc - now) / datetime.timedelta(days=1)


def write(file: Path, content: bytes) -> None:
    """Whole or not at all, for the owner alone."""
    new = file.with_name(f".{file.name}.new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        out.write(content)
    os.replace(new, file)


def _names(host: str) -> set[str]:
    return {name for name in (host, "127.0.0.1", "::1", "localhost", seams.hostname()) if name not in ("", "0.0.0.0", "::")}


def _certificate(
    name: str, days: int, extensions: Sequence[tuple[Any, bool]], authority: tuple[Any, Any] | None = None
) -> tuple[bytes, bytes]:
    """(certificate, key) as PEM: elliptic curve keys, made in a few milliseconds. Signed by `authority` (certificate, key) or by itself.

    `extensions` are told each with whether it is critical.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issuer, signer = (subject, key) if authority is None else (authority[0].subject, authority[1])
    begin, end = seams.utcnow() - datetime.timedelta(minutes=5), seams.utcnow() + datetime.timedelta(days=days)
    builder = x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number(), begin, end)
    identifiers = (
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
    )
    for extension, critical in (*extensions, *((identifier, False) for identifier in identifiers)):
        builder = builder.add_extension(extension, critical)
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    return builder.sign(signer, hashes.SHA256()).public_bytes(pem), key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)


def _authority() -> tuple[bytes, bytes]:
    """(certificate, key) as PEM."""
    from cryptography import x509

    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    return _certificate(f"koord-ca-{seams.token_hex(4)}", CA_DAYS, [(x509.BasicConstraints(ca=True, path_length=0), True), (usage, True)])


def _server(ca: bytes, ca_key: bytes, hosts: Iterable[str]) -> tuple[bytes, bytes]:
    """(certificate, key) as PEM, signed by the authority."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from cryptography.x509.oid import ExtendedKeyUsageOID

    alternatives: list[x509.GeneralName] = []
    for host in sorted(filter(None, hosts)):
        try:
            alternatives.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            alternatives.append(x509.DNSName(host))
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    authority = x509.load_pem_x509_certificate(ca), load_pem_private_key(ca_key, None)
    return _certificate("koord", SERVER_DAYS, [(x509.SubjectAlternativeName(alternatives), False), (usage, False)], authority)
