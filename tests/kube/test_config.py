"""Kubeconfig files, service accounts, credentials, TLS and proxies."""

from __future__ import annotations

import asyncio
import base64
import datetime
import ipaddress
import json
import os
import ssl
import stat
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from koord.api.kinds import PODS
from koord.kube import config, credentials, errors, tls
from koord.kube.client import Client
from koord.kube.config import ClientConfig
from koord.kube.credentials import CredentialError, ExecPlugin, KubeConfigError, StaticHeader, TokenFile
from koord.kube.proxies import proxy_from_environment
from tests.support import patience

Json = dict[str, Any]


def kubeconfig(path: Path, *, user: Json | None = None, cluster: Json | None = None, name: str = "one", current: str = "one") -> str:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": current,
        "clusters": [{"name": name, "cluster": {"server": f"https://{name}.example:6443/", **(cluster or {})}}],
        "users": [{"name": name, "user": user or {}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": f"ns-{name}"}}],
    }
    path.write_text(yaml.safe_dump(document))
    return str(path)


def header(loaded: ClientConfig) -> str | None:
    return asyncio.run(loaded.credentials.authorization())


def test_plain_file(tmp_path: Path) -> None:
    loaded = config.load(
        kubeconfig(tmp_path / "k", user={"token": "abc\n"}, cluster={"tls-server-name": "api", "insecure-skip-tls-verify": True})
    )
    assert (loaded.server, loaded.namespace, loaded.tls_server_name, loaded.insecure) == ("https://one.example:6443", "ns-one", "api", True)
    assert header(loaded) == "Bearer abc"
    assert config.load(str(tmp_path / "k"), master="http://127.0.0.1:8080").server == "http://127.0.0.1:8080"


def test_basic_and_token_file(tmp_path: Path) -> None:
    assert header(config.load(kubeconfig(tmp_path / "a", user={"username": "u", "password": "p"}))) == "Basic dTpw"
    (tmp_path / "token").write_text(" t1\n")
    assert header(config.load(kubeconfig(tmp_path / "b", user={"tokenFile": "token"}))) == "Bearer t1"
    assert header(config.load(kubeconfig(tmp_path / "c"))) is None


def test_files_of_the_environment_are_merged(tmp_path: Path) -> None:
    first = kubeconfig(tmp_path / "1", user={"token": "first"})
    second = kubeconfig(tmp_path / "2", user={"token": "second"}, name="two", current="two")
    environ = {"KUBECONFIG": os.pathsep.join([str(tmp_path / "missing"), first, second])}
    assert header(config.load(environ=environ)) == "Bearer first"
    assert header(config.load(environ=environ, context="two")) == "Bearer second"
    with pytest.raises(KubeConfigError, match="no such file"):
        config.load(environ={"KUBECONFIG": str(tmp_path / "missing")})


def test_in_cluster(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("sa-token")
    (tmp_path / "namespace").write_text("koordinator-system\n")
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443", "HOME": str(tmp_path)}
    loaded = config.load(environ=environ, service_account=str(tmp_path))
    assert (loaded.server, loaded.namespace) == ("https://[fd00::1]:443", "koordinator-system")
    assert header(loaded) == "Bearer sa-token"
    with pytest.raises(KubeConfigError, match="give --kubeconfig, set KUBECONFIG, or run in a pod"):
        config.load(environ={"HOME": str(tmp_path)}, service_account=str(tmp_path))
    (tmp_path / ".kube").mkdir()
    kubeconfig(tmp_path / ".kube" / "config", user={"token": "home"})
    assert header(config.load(environ={"HOME": str(tmp_path)}, service_account=str(tmp_path))) == "Bearer home"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "No such file"),
        ("a: [", "is no valid YAML"),
        ("a: " + "[" * 1000, "is no valid YAML: nested more deeply"),
        ("- a", "must be a mapping"),
        ("since: 2024-02-30", "has no current-context"),
        ("kind: Config", "has no current-context"),
        ("current-context: x", "context 'x' is not defined; known: none"),
        ("clusters: {}\ncurrent-context: x", "context 'x' is not defined"),
        ("clusters: [{cluster: {}}]", r"clusters\[0\] must be a mapping with a name"),
        ("current-context: x\ncontexts: [{name: x, context: {cluster: c}}]", "cluster 'c' is not defined"),
        (
            "current-context: x\ncontexts: [{name: x, context: {cluster: c}}]\nclusters: [{name: c, cluster: {server: foo}}]",
            "must be http://host",
        ),
    ],
)
def test_mistakes_name_the_file(tmp_path: Path, text: str | None, says: str) -> None:
    path = tmp_path / "config"
    if text is not None:
        path.write_text(text)
    with pytest.raises(KubeConfigError, match=says) as caught:
        config.load(str(path))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("user", "cluster", "says"),
    [
        ({"client-certificate": "no.pem"}, {}, "client-certificate: no such file"),
        ({"client-key-data": "a"}, {}, "client-key-data is no base64"),
        ({"exec": {"command": "x"}}, {}, "exec needs command and apiVersion"),
        ({"exec": {"command": "x", "apiVersion": "v1", "interactiveMode": "Always"}}, {}, "interactiveMode Always"),
        ({"as-groups": ["g"]}, {}, "need as"),
        ({"as": "a\nb"}, {}, "printable"),
        ({}, {"proxy-url": "socks5://x"}, "proxy-url 'socks5://x' must be http"),
        ({}, {"proxy-url": "http://u:pw@p:abc"}, "proxy-url 'http://<hidden>@p:abc' must be http"),
        ({}, {"server": "https://h:99999"}, "server 'https://h:99999' must be http"),
        ({}, {"server": "https://h:x"}, "server 'https://h:x' must be http"),
        ({}, {"server": "https://[::1"}, "must be http"),
        ({}, {"server": "https://h/a b"}, "must be http"),
        ({}, {"insecure-skip-tls-verify": "false"}, "insecure-skip-tls-verify 'false' must be true or false, without quotes"),
        ({}, {"tls-server-name": 5}, "tls-server-name 5 must be a text"),
        ({"as": "a", "as-groups": "system:x"}, {}, "as-groups must be a list"),
        ({"as": "a", "as-user-extra": {"k": "v"}}, {}, "as-user-extra a mapping of lists"),
        ({"as": "a", "as-user-extra": ["k"]}, {}, "as-user-extra a mapping of lists"),
    ],
)
def test_bad_entries(tmp_path: Path, user: Json, cluster: Json, says: str) -> None:
    with pytest.raises(KubeConfigError, match=says):
        config.load(kubeconfig(tmp_path / "k", user=user, cluster=cluster))


@pytest.mark.parametrize("part", ["cluster", "user"])
def test_a_context_that_names_no_text(tmp_path: Path, part: str) -> None:
    document = yaml.safe_load(Path(kubeconfig(tmp_path / "k")).read_text())
    document["contexts"][0]["context"][part] = ["one"]
    (tmp_path / "k").write_text(yaml.safe_dump(document))
    with pytest.raises(KubeConfigError, match=f"{part} \\['one'\\] is not defined; known: one"):
        config.load(str(tmp_path / "k"))


def test_a_master_without_a_good_port() -> None:
    with pytest.raises(KubeConfigError, match="--master: server 'https://h:x' must be http"):
        config.load(master="https://h:x", environ={"HOME": "/nonexistent"})


@pytest.mark.parametrize("proxy", ["http://p:abc", "socks5://p:1", "http://[::1", "http://"])
def test_a_proxy_of_the_environment_that_is_none(tmp_path: Path, proxy: str) -> None:
    with pytest.raises(KubeConfigError, match=r"HTTPS_PROXY: .* must be http"):
        config.load(kubeconfig(tmp_path / "k"), environ={"HTTPS_PROXY": proxy})


def test_a_token_beside_a_token_file_serves_until_that_can_be_read(tmp_path: Path) -> None:
    loaded = config.load(kubeconfig(tmp_path / "k", user={"token": "old", "tokenFile": "renewed"}))
    assert header(loaded) == "Bearer old"
    (tmp_path / "renewed").write_text("new\n")
    assert header(loaded) == "Bearer new"


def test_a_token_file_is_read_again_and_survives_a_gap(tmp_path: Path) -> None:
    path, now = tmp_path / "token", [0.0]
    path.write_text("one")

    async def main() -> None:
        source = TokenFile(str(path), clock=lambda: now[0])
        assert await source.authorization() == "Bearer one"
        path.write_text("two")
        assert await source.authorization() == "Bearer one"
        assert await source.authorization(renew=True) == "Bearer two"
        path.unlink()
        now[0] = 100.0
        assert await source.authorization() == "Bearer two"
        with pytest.raises(CredentialError, match="No such file"):
            await TokenFile(str(path)).authorization()

    asyncio.run(main())


def plugin(path: Path, answer: str, *, code: int = 0) -> Path:
    lines = ["#!/bin/sh", f"echo run >> {path}.log", f'echo "$KUBERNETES_EXEC_INFO" > {path}.info', "cat <<'END'", answer, "END"]
    path.write_text("\n".join([*lines, "echo why >&2", f"exit {code}", ""]))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


API = "client.authentication.k8s.io/v1"


def answer(**status: str) -> str:
    return f'{{"apiVersion": "{API}", "kind": "ExecCredential", "status": {str(status).replace(chr(39), chr(34))}}}'


def test_exec_plugin_is_cached_until_it_expires(tmp_path: Path) -> None:
    plugin(tmp_path / "plugin", answer(token="t", expirationTimestamp="2030-01-01T00:00:00Z"))
    entry = {
        "exec": {"command": "./plugin", "apiVersion": API, "args": ["a"], "env": [{"name": "X", "value": "1"}], "provideClusterInfo": True}
    }
    loaded = config.load(kubeconfig(tmp_path / "k", user=entry))
    source = loaded.credentials
    assert isinstance(source, ExecPlugin)
    expires = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC).timestamp()
    now = [expires - 100]
    source.wall_clock = lambda: now[0]

    async def main() -> None:
        runs = tmp_path / "plugin.log"
        assert set(await asyncio.gather(*(source.authorization() for _ in range(5)))) == {"Bearer t"}
        assert runs.read_text().count("run") == 1
        assert '"server": "https://one.example:6443/"' in (tmp_path / "plugin.info").read_text()
        await source.authorization(renew=True)
        assert runs.read_text().count("run") == 2
        now[0] = expires - 10
        await source.authorization()
        assert runs.read_text().count("run") == 3

    asyncio.run(main())


def test_the_last_answer_of_an_exec_plugin_does_until_it_expires(tmp_path: Path) -> None:
    path = plugin(tmp_path / "plugin", answer(token="t", expirationTimestamp="2030-01-01T00:00:00Z"))
    expires = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC).timestamp()
    now = [expires - 100]
    source = ExecPlugin("k", str(path), API, wall_clock=lambda: now[0])

    async def main() -> None:
        assert await source.authorization() == "Bearer t"
        plugin(path, "", code=1)
        runs = (tmp_path / "plugin.log").read_text
        for at, count in ((10, 2), (9, 2), (5, 3)):  # no request waits for a plugin that has just failed
            now[0] = expires - at
            assert (await source.authorization(), runs().count("run")) == ("Bearer t", count)
        with pytest.raises(CredentialError):
            await source.authorization(renew=True)  # the server does not take it
        now[0] = expires
        with pytest.raises(CredentialError):
            await source.authorization()

    asyncio.run(main())


@pytest.mark.parametrize("master", [None, "https://two.example:6443"])
@pytest.mark.parametrize("inline", [True, False])
def test_an_exec_plugin_is_told_of_the_cluster_as_by_client_go(tmp_path: Path, inline: bool, master: str | None) -> None:
    plugin(tmp_path / "plugin", answer(token="t"))
    entry = {"exec": {"command": "./plugin", "apiVersion": API, "provideClusterInfo": True}}
    (tmp_path / "ca.crt").write_bytes(b"PEM")
    data = base64.b64encode(b"PEM").decode()
    cluster = {
        "server": "https://one.example:6443", "proxy-url": "http://user:word@proxy:3128", "tls-server-name": "one",
        "extensions": [{"name": "client.authentication.k8s.io/exec", "extension": {"audience": "a"}}],
        **({"certificate-authority-data": data} if inline else {"certificate-authority": "ca.crt"}),
    }  # fmt: skip
    loaded = config.load(kubeconfig(tmp_path / "k", user=entry, cluster=cluster), master=master)
    asyncio.run(loaded.credentials.authorization())
    assert json.loads((tmp_path / "plugin.info").read_text())["spec"]["cluster"] == {
        "server": master or "https://one.example:6443",
        "tls-server-name": "one",
        "certificate-authority-data": data,
        "proxy-url": "http://user:word@proxy:3128",
        "config": {"audience": "a"},
    }
    assert "word" not in repr(loaded.credentials)


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        ("{", 0, "is no JSON"),
        ("{}", 0, "is no ExecCredential"),
        (answer(x="y"), 0, "neither status.token"),
        (answer(token="t", expirationTimestamp="soon"), 0, "is no RFC 3339 time"),
        (answer(token="t"), 3, "exit status 3: why"),
        (answer(token="t").replace("v1", "v1beta1"), 0, "the kubeconfig says"),
    ],
)
def test_exec_plugins_that_fail(tmp_path: Path, body: str, code: int, says: str) -> None:
    path = plugin(tmp_path / "plugin", body, code=code)
    with pytest.raises(CredentialError, match=says):
        asyncio.run(ExecPlugin("k", str(path), API).authorization())


def test_an_exec_plugin_that_is_missing_or_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CredentialError, match=r"No such file.*install it"):
        asyncio.run(ExecPlugin("k", str(tmp_path / "no"), API, install_hint="install it").authorization())
    monkeypatch.setattr(credentials, "EXEC_TIMEOUT", 0.1)
    path = tmp_path / "hang"
    path.write_text("#!/bin/sh\nexec sleep 60\n")
    path.chmod(0o755)
    with pytest.raises(CredentialError, match="no answer within"):
        asyncio.run(ExecPlugin("k", str(path), API).authorization())


def test_an_exec_plugin_ends_with_who_waits_for_it(tmp_path: Path) -> None:
    """Cancelled at any moment, the start among them; what the plugin has started itself ends, too."""
    path = tmp_path / "plugin"
    path.write_text(f"#!/bin/sh\necho $$ >> {tmp_path}/pids\nsleep 60 &\necho $! >> {tmp_path}/pids\nwait\n")
    path.chmod(0o755)

    async def main(pause: float) -> None:
        task = asyncio.create_task(ExecPlugin("k", str(path), API).authorization())
        await asyncio.sleep(pause)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    for pause in (0.0, 0.001, 0.01, 0.3):
        began = time.monotonic()
        asyncio.run(main(pause))
        assert time.monotonic() - began < patience.seconds(10)
    for pid in (tmp_path / "pids").read_text().split():
        assert any(_ended(pid) or time.sleep(0.1) for _ in patience.tries(50)), pid


def _ended(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def certificate(name: str, issuer: tuple[x509.Certificate, Any] | None = None) -> tuple[bytes, bytes, tuple[x509.Certificate, Any]]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName(
        [x509.DNSName(name), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))] if name != "other" else [x509.DNSName(name)]
    )
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer[0].subject if issuer else subject)
    builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number()).add_extension(names, critical=False)
    builder = builder.not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + datetime.timedelta(days=1))
    builder = builder.add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    made = builder.sign(issuer[1] if issuer else key, hashes.SHA256())
    pem = made.public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return pem, secret, (made, key)


def test_tls_with_client_certificates(tmp_path: Path) -> None:
    authority, _, issuer = certificate("ca")
    server_pem, server_key, _ = certificate("other", issuer)
    client_pem, client_key, _ = certificate("client", issuer)
    for name, data in {"ca": authority, "server": server_pem + server_key, "cert": client_pem, "key": client_key}.items():
        (tmp_path / name).write_bytes(data)

    async def main() -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(tmp_path / "ca"))
        context.load_cert_chain(tmp_path / "server")
        context.verify_mode = ssl.CERT_REQUIRED

        async def handle(request: web.Request) -> web.Response:
            assert request.transport is not None
            peer = request.transport.get_extra_info("peercert")
            return web.json_response({"kind": "Pod", "metadata": {"name": peer["subject"][0][0][1]}})

        app = web.Application()
        app.router.add_get("/{path:.*}", handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        server = f"https://127.0.0.1:{runner.addresses[0][1]}"

        async def ask(user: Json, **cluster: Any) -> str:
            loaded = config.load(kubeconfig(tmp_path / "k", user=user, cluster=cluster), master=server)
            async with Client(loaded) as client:
                return str((await client.get(PODS, "x", "y"))["metadata"]["name"])

        files = {"client-certificate": "cert", "client-key": "key"}
        inline = {f"{name}-data": base64.b64encode((tmp_path / file).read_bytes()).decode() for name, file in files.items()}
        trusted = {"certificate-authority": "ca", "tls-server-name": "other"}
        assert await ask(files, **trusted) == "client"
        assert await ask(inline, **trusted) == "client"
        assert await ask(inline, **{"insecure-skip-tls-verify": True}) == "client"
        with pytest.raises(errors.Unreachable, match="certificate verify failed"):
            await ask(inline, **{"certificate-authority": "ca"})  # the certificate names another host
        with pytest.raises(errors.Unreachable, match="certificate verify failed"):
            await ask(inline, **{"tls-server-name": "other"})  # by an unknown authority
        with pytest.raises(errors.Unreachable, match="without client-key"):
            await ask({"client-certificate": "cert"}, **trusted)
        await runner.cleanup()

    asyncio.run(main())


def test_what_stands_around_the_certificates_of_a_bundle_does_not_matter(tmp_path: Path) -> None:
    first, second = certificate("one")[0], certificate("two")[0]
    around = "# Zertifizierungsstelle Köln\r\n".encode() + first + b"\xff\x00 \n" + second + b"-----BEGIN NOTHING-----\n"
    bundle = tmp_path / "bundle"
    bundle.write_bytes(around)
    context = tls.TlsSource(ClientConfig("https://x", ca=tls.Pem(path=str(bundle)))).context()
    assert context is not None
    assert {dict(part[0] for part in found["subject"])["commonName"] for found in context.get_ca_certs()} == {"one", "two"}


@pytest.mark.parametrize(
    ("bundle", "words"),
    [
        (b"", "has no certificate"),
        (b"# nothing yet\n", "has no certificate"),
        (b"-----BEGIN CERTIFICATE-----\nMIIB", "has no certificate"),
        (b"-----BEGIN CERTIFICATE-----\n\xc3\xa4\n-----END CERTIFICATE-----\n", "cannot be used"),
    ],
)
def test_a_bundle_without_a_usable_certificate_is_one_clear_error(tmp_path: Path, bundle: bytes, words: str) -> None:
    (tmp_path / "bundle").write_bytes(bundle)
    with pytest.raises(config.KubeConfigError, match=f"certificate-authority {words}"):
        tls.TlsSource(ClientConfig("https://x", ca=tls.Pem(path=str(tmp_path / "bundle")), source="kubeconfig")).context()


def test_renewed_certificates_make_a_new_context(tmp_path: Path) -> None:
    authority, _, issuer = certificate("ca")
    path, now = tmp_path / "cert", [0.0]

    def renew(stamp: int) -> None:
        pem, key, _ = certificate("client", issuer)
        path.write_bytes(pem + key)
        os.utime(path, (stamp, stamp))

    renew(1)
    source = tls.TlsSource(ClientConfig("https://x", ca=tls.Pem(data=authority), cert=tls.Pem(path=str(path))), lambda: now[0])
    first = source.context()
    now[0] = 100.0
    assert source.context() is first
    renew(2)
    assert source.context() is first
    now[0] = 200.0
    second = source.context()
    assert second is not first
    path.write_text("garbage")
    now[0] = 300.0
    assert source.context() is second
    assert tls.TlsSource(ClientConfig("http://x")).context() is None


def test_unauthorized_renews_the_token_once(fault_server: Any, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("old")

    async def main() -> None:
        async with fault_server() as (server, _):

            def script(request: web.Request) -> web.Response | None:
                return None if request.headers["Authorization"] == "Bearer new" else web.Response(status=401)

            server.script = script
            async with Client(ClientConfig(server.url, credentials=TokenFile(str(path)))) as client:
                with pytest.raises(errors.Unauthorized):
                    await client.get(PODS, "p", "default")
                assert len(server.requests) == 2
                path.write_text("new")
                await client.get(PODS, "p", "default")
            async with Client(ClientConfig(server.url, credentials=StaticHeader.bearer("bad"))) as client:
                with pytest.raises(errors.Unauthorized):
                    [line async for line in client.watch(PODS)]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("server", "environ", "proxy"),
    [
        ("https://api:6443", {"HTTPS_PROXY": "http://p:1"}, "http://p:1"),
        ("https://api:6443", {"https_proxy": "p:1"}, "http://p:1"),
        ("https://api:6443", {"HTTP_PROXY": "http://p:1"}, None),
        ("http://api", {"HTTP_PROXY": "http://p:1", "NO_PROXY": "other"}, "http://p:1"),
        ("https://api:6443", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "*"}, None),
        ("https://a.b.c", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "x, .b.c"}, None),
        ("https://a.b.c", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "b.c"}, None),
        ("https://ab.c", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "b.c"}, "http://p:1"),
        ("https://10.1.2.3", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "10.0.0.0/8"}, None),
        ("https://11.1.2.3", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "10.0.0.0/8,nonsense/x"}, "http://p:1"),
        ("https://10.1.2.3:6443", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "10.1.2.3:443"}, "http://p:1"),
        ("https://10.1.2.3:6443", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "10.1.2.3:6443"}, None),
        ("https://[fd00::1]:6443", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "[fd00::1]:6443"}, None),
        ("https://localhost", {"HTTPS_PROXY": "http://p:1"}, None),
        ("https://127.0.0.1:6443", {"HTTPS_PROXY": "http://p:1"}, None),
    ],
)
def test_proxies(server: str, environ: dict[str, str], proxy: str | None) -> None:
    assert proxy_from_environment(server, environ) == proxy


def test_impersonation(fault_server: Any, tmp_path: Path) -> None:
    user = {"as": "jane", "as-uid": "7", "as-groups": ["g1", "g2"], "as-user-extra": {"a/b": ["x"]}}

    async def main() -> None:
        async with fault_server() as (server, _):
            async with Client(config.load(kubeconfig(tmp_path / "k", user=user), master=server.url)) as client:
                await client.list(PODS)
                server.compact()
                with pytest.raises(errors.Gone):
                    [line async for line in client.watch(PODS, resource_version="1")]
            for request in server.requests:
                headers = request.headers
                assert (headers["Impersonate-User"], headers["Impersonate-Uid"], headers["Impersonate-Extra-a%2Fb"]) == ("jane", "7", "x")
                assert headers.getall("Impersonate-Group") == ["g1", "g2"]
            assert len(server.requests) == 2

    asyncio.run(main())


def test_a_proxy_is_really_used(fault_server: Any) -> None:
    async def main() -> None:
        async with fault_server() as (server, _), Client(ClientConfig("http://api.invalid", proxy=server.url)) as client:
            await client.list(PODS)
            assert server.requests[0].headers["Host"] == "api.invalid"

    asyncio.run(main())
