"""A certificate authority and a server certificate that a process makes for itself."""

from __future__ import annotations

import datetime
import ipaddress
import os
import ssl
from dataclasses import dataclass
from pathlib import Path

from koord import seams

_YEARS = 10


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


def ensure(directory: Path, host: str) -> Certificates:
    """Certificates under `directory`, made now unless they are there for this host."""
    ca_file, cert_file, key_file, names_file = (directory / n for n in ("ca.crt", "server.crt", "server.key", "hosts"))
    names = ",".join(sorted(_names(host)))
    if all(f.exists() for f in (ca_file, cert_file, key_file, names_file)) and names_file.read_text() == names:
        return Certificates(ca_file.read_bytes(), cert_file, key_file)
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    ca, cert, key = _make(_names(host))
    for file, content in ((ca_file, ca), (cert_file, cert), (key_file, key), (names_file, names.encode())):
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as out:
            out.write(content)
    return Certificates(ca, cert_file, key_file)


def _names(host: str) -> set[str]:
    return {
        host,
        "127.0.0.1",
        "::1",
        "localhost",
        seams.hostname(),
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "10.0.0.1",
    }


def _make(hosts: set[str]) -> tuple[bytes, bytes, bytes]:
    """(authority, server certificate, server key) as PEM: elliptic curve keys, made in a few milliseconds."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    start = seams.utcnow() - datetime.timedelta(minutes=5)
    end = start + datetime.timedelta(days=365 * _YEARS)
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "koord-apiserver-ca")])

    def base(subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(ca_name).public_key(public)
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(start).not_valid_after(end)
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
        return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public), False).add_extension(identifier, False)

    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    ca = base(ca_name, ca_key.public_key()).add_extension(x509.BasicConstraints(ca=True, path_length=0), True).add_extension(usage, True)
    alternatives: list[x509.GeneralName] = []
    for host in sorted(h for h in hosts if h):
        try:
            alternatives.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            alternatives.append(x509.DNSName(host))
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "koord-apiserver")])
    server = base(subject, key.public_key()).add_extension(x509.SubjectAlternativeName(alternatives), False)
    server = server.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
    pem = serialization.Encoding.PEM
    return (
        ca.sign(ca_key, hashes.SHA256()).public_bytes(pem),
        server.sign(ca_key, hashes.SHA256()).public_bytes(pem),
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
