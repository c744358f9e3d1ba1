"""The webhook port asks callers for a client certificate when it is told whose: real TLS, real certificates."""

import asyncio
import datetime
import json
import ssl

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from koord.process.errors import ConfigurationError
from roles.manager.webhooks.callers import Callers

NOW = datetime.datetime.now(datetime.UTC)
CLIENT, SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH


class Authority:
    """Signs certificates; their files lie in `folder`."""

    def __init__(self, folder, name):
        self.folder, self.name = folder, x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.key = ec.generate_private_key(ec.SECP256R1())
        built = self._builder(self.name, self.key, 30).add_extension(x509.BasicConstraints(True, None), True)
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(self._signed(built))

    def _builder(self, subject, key, days):
        since = NOW - datetime.timedelta(days=60)
        return x509.CertificateBuilder(
            self.name, subject, key.public_key(), x509.random_serial_number(), since, NOW + datetime.timedelta(days)
        )

    def _signed(self, builder):
        return builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def issue(self, name, usage=CLIENT, days=10):
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name(
            [x509.NameAttribute(NameOID.COMMON_NAME, name), x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:masters")]
        )
        built = self._builder(subject, key, days).add_extension(x509.ExtendedKeyUsage([usage]), False)
        pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        file = self.folder / f"{name}-{x509.random_serial_number()}.pem"
        file.write_bytes(self._signed(built) + pem)
        return file


async def ask(manager, certificate=None, path="/validate-pod", method="POST"):
    """(status, body) of a request over a connection of its own; 0 where TLS fails."""
    context = ssl.create_default_context(cafile=manager.app.webhooks.folder.ca_file)
    if certificate is not None:
        context.load_cert_chain(certificate)
    pod = {"metadata": {"name": "w"}, "spec": {"containers": [{"name": "main", "image": "x"}]}}
    resource = {"group": "", "version": "v1", "resource": "pods"}
    review = {"uid": "u", "operation": "CREATE", "namespace": "default", "resource": resource, "object": pod}
    body = (
        json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": review}).encode()
        if method == "POST"
        else b""
    )
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", manager.port, ssl=context, server_hostname="localhost")
    except OSError:
        return 0, ""
    try:
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        head, _, text = (await reader.read()).partition(b"\r\n\r\n")
        return int(head.split()[1]) if head else 0, text.decode()
    except OSError:  # TLS 1.3 tells a client that its certificate is refused after the handshake
        return 0, ""
    finally:
        writer.close()


@pytest.mark.feature("MGR-WH-01")
def test_reviews_need_a_certificate_of_the_authority_and_health_does_not(bed, tmp_path):
    ours, other = Authority(tmp_path, "ours"), Authority(tmp_path, "other")
    options = {"webhook_client_ca_file": str(ours.file), "webhook_client_allowed_names": ("kube-apiserver", "aggregator")}

    async def test(bed):
        manager = await bed.start(**options)
        good = ours.issue("kube-apiserver")
        for path in ("/validate-pod", "/mutate-pod"):
            status, text = await ask(manager, good, path)
            assert (status, json.loads(text)["response"]["allowed"]) == (200, True)
        # without one: a reason; with one that OpenSSL refuses: no TLS
        for path in ("/validate-pod", "/mutate-pod", "/convert"):
            status, text = await ask(manager, None, path)
            assert status == 403
            assert "--webhook-client-ca-file" in text
        status, text = await ask(manager, ours.issue("kubelet"))
        assert status == 403
        assert "'kubelet'" in text
        for bad in (other.issue("kube-apiserver"), ours.issue("kube-apiserver", SERVER), ours.issue("kube-apiserver", days=-1)):
            assert await ask(manager, bad) == (0, "")
        # who may be asked for health stays as it was, our own probe too
        assert (await ask(manager, None, "/healthz", "GET"))[0] == 200

        async def ready():
            return (await manager.get("/readyz"))[0] == 200

        await bed.until(ready)
        assert (await manager.get("/metrics"))[0] == 200
        # the authority is replaced, by something that cannot be read first: no restart
        ours.file.write_text("nothing")
        manager.app.webhooks.poke()
        await manager.app.webhooks.sync()
        assert (await ask(manager, good))[0] == 200
        ours.file.write_bytes(other.file.read_bytes())
        await manager.app.webhooks.sync()
        assert (await ask(manager, good))[0] == 0
        assert (await ask(manager, other.issue("aggregator")))[0] == 200

    bed(test)


@pytest.mark.feature("MGR-WH-01")
def test_a_caller_s_certificate_is_nobody_s_user(bed, tmp_path):
    """The authority speaks for API servers: whom it calls an administrator is none of the cluster."""
    ours = Authority(tmp_path, "ours")

    async def test(bed):
        manager = await bed.start(webhook_client_ca_file=str(ours.file), webhook_client_allowed_names=("kube-apiserver",))
        manager.app.server._local = False  # as on an address that others reach
        assert (await ask(manager, ours.issue("root"), "/elasticQuota", "GET"))[0] == 403
        assert (await ask(manager, None, "/elasticQuota", "GET"))[0] == 403
        assert (await ask(manager, ours.issue("kube-apiserver"), "/elasticQuota", "GET"))[0] == 200

    bed(test)


@pytest.mark.feature("MGR-WH-01")
def test_nobody_is_asked_by_default(bed, tmp_path):
    async def test(bed):
        manager = await bed.start()
        assert (await ask(manager))[0] == 200
        assert (await ask(manager, Authority(tmp_path, "any").issue("kube-apiserver")))[0] == 200

    bed(test)


def test_a_file_without_certificates_is_refused_at_start(tmp_path):
    empty, key = tmp_path / "empty", tmp_path / "key"
    empty.write_text("")
    key.write_bytes(Authority(tmp_path, "a").issue("x").read_bytes().partition(b"-----END CERTIFICATE-----\n")[2])
    for file in (empty, key, tmp_path / "none", tmp_path):
        with pytest.raises(ConfigurationError, match="--webhook-client-ca-file") as caught:
            Callers(str(file))
        assert str(file) in str(caught.value)
    with pytest.raises(ConfigurationError, match="--webhook-client-allowed-names"):
        Callers(names=("x",))


@pytest.mark.feature("MGR-WH-01")
def test_what_stands_around_the_authorities_does_not_matter(tmp_path):
    ours = Authority(tmp_path, "ours")
    ours.file.write_bytes("# Büro\n".encode("latin-1") + ours.file.read_bytes())
    assert Callers(str(ours.file)).context().cert_store_stats()["x509"] == 1
    ours.file.write_text("# nothing\n")
    with pytest.raises(ConfigurationError, match=r"--webhook-client-ca-file: .*ours\.pem has no certificates in PEM form"):
        Callers(str(ours.file))
