"""Self-made webhook certificates: made, judged and renewed from bytes and a time; pure (MGR-WH-02)."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

FILES = ("ca-key.pem", "ca-cert.pem", "key.pem", "tls.key", "cert.pem", "tls.crt")
VALIDITY = timedelta(days=3650)
"""Of the CA."""
SERVER_VALIDITY = timedelta(days=90)
UNREADABLE = (ValueError, TypeError, UnsupportedAlgorithm)
"""What is raised for certificates and keys that cannot be used; TypeError: the key is encrypted."""
RENEW_AT = 2 / 3
"""The part of its life after which a certificate is renewed, long before anyone would refuse it."""
SERVER_MARGIN = timedelta(days=30)
CA_MARGIN = timedelta(days=365)


@dataclass(frozen=True, slots=True)
class Certs:
    """PEM bytes. `ca_cert` may hold several certificates: the present CA first, then those that are still trusted."""

    ca_key: bytes
    ca_cert: bytes
    key: bytes
    cert: bytes

    def served(self) -> dict[str, bytes]:
        """What the server needs, by file name: all but the key of the CA."""
        return {name: content for name, content in self.files().items() if name != "ca-key.pem"}

    def files(self) -> dict[str, bytes]:
        """Content by file name and Secret key."""
        return dict(zip(FILES, (self.ca_key, self.ca_cert, self.key, self.key, self.cert, self.cert), strict=True))

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> Certs | None:
        """None unless all six are there and not empty."""
        if not all(files.get(name) for name in FILES):
            return None
        return cls.remains(files)

    @classmethod
    def remains(cls, files: Mapping[str, bytes]) -> Certs:
        """What there is, for `renew`: a CA that is whole goes on although another part is missing."""
        return cls(*(files.get(name, b"") for name in ("ca-key.pem", "ca-cert.pem", "key.pem", "cert.pem")))


def problem(certs: Certs, dns_name: str, now: datetime) -> str:
    """Why the server certificate must be replaced, "" if it may serve on."""
    try:
        cert = x509.load_pem_x509_certificate(certs.cert)
        ca = x509.load_pem_x509_certificate(certs.ca_cert)
        # the numbers are ours: checking them anew takes a fifteenth of a second
        key = serialization.load_pem_private_key(certs.key, None, unsafe_skip_rsa_key_validation=True)
        public = cert.public_key()
    except UNREADABLE as error:
        return f"it cannot be read: {error}"
    if public != key.public_key():
        return "key and certificate do not belong together"
    if not _signed_by(cert, ca):
        return "it is not signed by the CA"
    if dns_name not in _names(cert):
        return f"it is not for {dns_name}"
    # That it begins in the future says that the clock of this replica is wrong, and is no reason to replace what all others use.
    for what, one, margin in (("it", cert, SERVER_MARGIN), ("the CA", ca, CA_MARGIN)):
        if now > _renewal(one, margin):
            return f"{what} ends at {one.not_valid_after_utc:%Y-%m-%d} and is due for renewal"
    return ""


def _renewal(cert: x509.Certificate, margin: timedelta) -> datetime:
    """Two thirds of its life, or `margin` before its end, whichever is earlier."""
    begin, end = cert.not_valid_before_utc, cert.not_valid_after_utc
    return min(begin + (end - begin) * RENEW_AT, end - margin)


def renew(old: Certs | None, dns_name: str, now: datetime) -> Certs:
    """New certificates; the old CA signs on if it is sound for another year, else a new one is made and the old stays trusted."""
    ca_key_pem, bundle = (old.ca_key, old.ca_cert) if old is not None else (b"", b"")
    ca = _usable_ca(ca_key_pem, bundle, now)
    if ca is None:
        ca_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        ca_cert = _ca_certificate(ca_key, now)
        ca_key_pem = _pem_key(ca_key)
        bundle = _pem(ca_cert) + b"".join(_pem(cert) for cert in _still_valid(bundle, now))
    else:
        ca_key, ca_cert = ca
    # With RSA a handshake costs the server a millisecond and a half, and API servers make hundreds when many pods come at once.
    key = ec.generate_private_key(ec.SECP256R1())
    cert = _server_certificate(key, dns_name, ca_key, ca_cert, now)
    return Certs(ca_key_pem, bundle, _pem_key(key), _pem(cert))


def _usable_ca(key_pem: bytes, cert_pem: bytes, now: datetime) -> tuple[rsa.RSAPrivateKey, x509.Certificate] | None:
    try:
        key = serialization.load_pem_private_key(key_pem, None)
        cert = x509.load_pem_x509_certificate(cert_pem)
    except UNREADABLE:
        return None
    if not isinstance(key, rsa.RSAPrivateKey) or key.public_key() != cert.public_key() or not _signed_by(cert, cert):
        return None
    return (key, cert) if now <= _renewal(cert, CA_MARGIN) else None


def _still_valid(bundle: bytes, now: datetime) -> list[x509.Certificate]:
    """CAs to trust on while replicas still serve with certificates that they signed; at most two."""
    try:
        certs = x509.load_pem_x509_certificates(bundle) if bundle else []
    except UNREADABLE:
        return []
    return [cert for cert in certs if cert.not_valid_after_utc > now][:2]


def _signed_by(cert: x509.Certificate, ca: x509.Certificate) -> bool:
    try:
        public = ca.public_key()
        if not isinstance(public, rsa.RSAPublicKey) or cert.signature_hash_algorithm is None:
            return False
        public.verify(cert.signature, cert.tbs_certificate_bytes, padding.PKCS1v15(), cert.signature_hash_algorithm)
    except (InvalidSignature, *UNREADABLE):
        return False
    return True


def _names(cert: x509.Certificate) -> set[str]:
    try:
        names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    return {*names.get_values_for_type(x509.DNSName), *(str(ip) for ip in names.get_values_for_type(x509.IPAddress))}


def _pem(cert: x509.Certificate) -> bytes:
    return cert.public_bytes(serialization.Encoding.PEM)


def _pem_key(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption())


def _name(common: str) -> x509.Name:
    # A common name holds 64 characters; longer DNS names live in the SAN, which is what is verified.
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])


def _ca_certificate(key: rsa.RSAPrivateKey, now: datetime) -> x509.Certificate:
    begin = now.replace(microsecond=0) - timedelta(hours=1)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=False, content_commitment=False, key_encipherment=True,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    return (
        x509.CertificateBuilder()
        .subject_name(_name("webhook-cert-ca"))
        .issuer_name(_name("webhook-cert-ca"))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + VALIDITY)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )


def _server_certificate(
    key: ec.EllipticCurvePrivateKey, dns_name: str, ca_key: rsa.RSAPrivateKey, ca: x509.Certificate, now: datetime
) -> x509.Certificate:
    alternatives: list[x509.GeneralName] = [x509.DNSName("localhost")]
    try:
        alternatives.append(x509.IPAddress(ipaddress.IPv4Address(dns_name)))
    except ValueError:
        alternatives.append(x509.DNSName(dns_name))
    begin = max(now.replace(microsecond=0) - timedelta(hours=1), ca.not_valid_before_utc)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(dns_name))
        .issuer_name(ca.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        # At most as long as its issuer: a certificate that outlives its CA only looks valid.
        .not_valid_after(min(begin + SERVER_VALIDITY, ca.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
