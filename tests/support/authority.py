"""A certificate authority of a test cluster, and what it signs: servers, and users by name and group."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_PKCS8 = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


@dataclass(frozen=True, slots=True)
class Pair:
    """PEM."""

    certificate: bytes
    key: bytes


class Authority:
    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "koord-test")])
        constraint = x509.BasicConstraints(ca=True, path_length=None)
        made = self._builder(self._name, self._key.public_key()).add_extension(constraint, critical=True).sign(self._key, hashes.SHA256())
        self.certificate = made.public_bytes(serialization.Encoding.PEM)

    def issue(self, name: str, group: str = "", *, names: Sequence[str] = ()) -> Pair:
        """For a user of a group, or for a server with these DNS names and addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        attributes = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
        if group:
            attributes.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, group))
        usage = ExtendedKeyUsageOID.SERVER_AUTH if names else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = self._builder(x509.Name(attributes), key.public_key()).add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName([_alternative(one) for one in names]), critical=False)
        made = builder.sign(self._key, hashes.SHA256())
        return Pair(made.public_bytes(serialization.Encoding.PEM), key.private_bytes(*_PKCS8))

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        begin, end = now - datetime.timedelta(hours=1), now + datetime.timedelta(days=7)
        return x509.CertificateBuilder(self._name, subject, key, x509.random_serial_number(), begin, end)


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def signing_key() -> bytes:
    """An RSA key (PEM) with which an API server signs the tokens of service accounts."""
    return rsa.generate_private_key(65537, 2048).private_bytes(*_PKCS8)
