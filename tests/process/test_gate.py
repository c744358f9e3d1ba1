"""A port that others reach: health for everybody, the rest for whom the API server lets (BEY-SEC-01)."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from koord.kube.errors import ApiError
from koord.process.certificates import ensure
from koord.process.errors import ConfigurationError
from koord.process.http import OpsServer
from koord.process.requests import Headers, Request
from koord.process.serving import TOKEN_HEADER, Gate, Serving, client_authority, follow_authority, tls_source
from tests.support import patience
from tests.support.authority import Authority

pytestmark = pytest.mark.feature("BEY-SEC-01")


class Reviewer:
    """Knows the token `good`, whose user may read everything but /secret."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.fails: Exception | None = None

    async def create(self, kind: Any, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(kind.kind)
        if self.fails is not None:
            raise self.fails
        spec = body["spec"]
        if kind.kind == "TokenReview":
            return {"status": {"authenticated": spec["token"] == "good", "user": {"username": "reader", "groups": []}}}
        return {"status": {"allowed": spec["nonResourceAttributes"]["path"] != "/secret"}}


@contextlib.asynccontextmanager
async def served(gate: Gate | None, tls: Any = None) -> AsyncIterator[OpsServer]:
    server = OpsServer("0.0.0.0", 0, role="scheduler", tls=tls, gate=gate)
    server.health.set("leader", False, "held by pod-7 of 10.0.0.3")
    server.json("/configz", lambda: {"a": 1})
    server.json("/secret", lambda: {"b": 2})
    server.enable_profiling()
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def ask(server: OpsServer, path: str, scheme: str = "https", method: str = "GET", **headers: str) -> tuple[int, str]:
    url = f"{scheme}://127.0.0.1:{server.port}{path}"
    async with aiohttp.ClientSession() as session, session.request(method, url, ssl=False, headers=headers) as answer:
        return answer.status, await answer.text()


GOOD, BAD = {"Authorization": "Bearer good"}, {"Authorization": "Bearer bad"}


def test_only_health_is_told_to_strangers_and_without_reasons() -> None:
    async def main() -> None:
        reviewer = Reviewer()
        async with served(Gate(Serving(), reviewer, reviewer), tls_source(Serving())) as server:
            for scheme in ("http", "https"):
                assert await ask(server, "/healthz", scheme) == (200, "ok")
                assert await ask(server, "/readyz?verbose", scheme) == (
                    503,
                    "[-]leader failed: reason withheld\nreadyz check failed\n",
                )
                for path in ("/metrics", "/configz", "/debug/decisions", "/debug/tasks", "/version", "/readyz/leader", "/nothing"):
                    assert (await ask(server, path, scheme))[0] == 403, path
                assert (await ask(server, "/debug/flags/v", scheme, "PUT"))[0] == 403
            assert reviewer.asked == [], "who shows nothing costs the API server nothing"

    asyncio.run(main())


def test_a_token_counts_by_https_in_either_header() -> None:
    async def main() -> None:
        reviewer = Reviewer()
        async with served(Gate(Serving(), reviewer, reviewer), tls_source(Serving())) as server:
            assert await ask(server, "/configz", **GOOD) == (200, '{"a":1}')
            assert await ask(server, "/configz", **{TOKEN_HEADER: "Bearer good"}) == (200, '{"a":1}')
            assert "10.0.0.3" in (await ask(server, "/readyz/leader", **GOOD))[1]
            assert (await ask(server, "/secret", **GOOD))[0] == 403
            assert (await ask(server, "/configz", **BAD))[0] == 401
            reviewer.asked.clear()
            assert (await ask(server, "/configz", **BAD))[0] == 401
            assert (await ask(server, "/configz", **GOOD))[0] == 200
            assert reviewer.asked == [], "both answers are remembered"
            assert await ask(server, "/configz", "http", **GOOD) == (403, "Forbidden: this is answered by HTTPS only, with credentials\n")

    asyncio.run(main())


@pytest.mark.parametrize("error", [ApiError(0, "Unreachable", "no answer"), TimeoutError(), OSError("reset")])
def test_it_fails_closed(error: Exception) -> None:
    async def main() -> None:
        reviewer = Reviewer()
        reviewer.fails = error
        async with served(Gate(Serving(), reviewer, reviewer), tls_source(Serving())) as server:
            assert (await ask(server, "/configz", **GOOD))[0] == 503
            assert (await ask(server, "/healthz"))[0] == 200
        async with served(None) as server:
            assert (await ask(server, "/configz", "http", **GOOD))[0] == 403
            assert (await ask(server, "/healthz", "http"))[0] == 200
        nobody = Gate(Serving())
        async with served(nobody, tls_source(Serving())) as server:
            assert (await ask(server, "/configz", **GOOD)) == (403, "Forbidden: there is no API server to ask who may see this\n")

    asyncio.run(main())


def test_a_flood_of_tokens_is_turned_away_and_does_not_reach_the_api_server() -> None:
    class Slow(Reviewer):
        async def create(self, kind: Any, body: dict[str, Any]) -> dict[str, Any]:
            self.asked.append(kind.kind)
            await release.wait()
            return {"status": {"authenticated": False}}

    release = asyncio.Event()

    async def main() -> None:
        reviewer = Slow()
        async with served(Gate(Serving(), reviewer, reviewer), tls_source(Serving())) as server:
            flood = [asyncio.create_task(ask(server, "/configz", Authorization=f"Bearer {number}")) for number in range(40)]
            async with asyncio.timeout(patience.seconds(20)):
                while sum(task.done() for task in flood) < 24:
                    await asyncio.sleep(0.01)
            assert len(reviewer.asked) == 16
            assert (await ask(server, "/healthz"))[0] == 200
            release.set()
            assert sorted({(await task)[0] for task in flood}) == [401, 503]

    asyncio.run(main())


def test_a_verdict_is_for_the_whole_user_not_for_the_name_alone() -> None:
    class Scoped(Reviewer):
        async def create(self, kind: Any, body: dict[str, Any]) -> dict[str, Any]:
            spec = body["spec"]
            if kind.kind == "TokenReview":
                user = {"username": "reader", "extra": {"scopes": [spec["token"]]}}
                return {"status": {"authenticated": True, "user": user}}
            return {"status": {"allowed": spec["extra"] == {"scopes": ["full"]}}}

    async def main() -> None:
        reviewer = Scoped()
        async with served(Gate(Serving(), reviewer, reviewer), tls_source(Serving())) as server:
            assert (await ask(server, "/configz", Authorization="Bearer full"))[0] == 200
            assert (await ask(server, "/configz", Authorization="Bearer narrow"))[0] == 403

    asyncio.run(main())


def test_a_certificate_without_a_name_is_nobodys() -> None:
    class Shown:
        def get_extra_info(self, name: str) -> Any:
            return {"subject": ((("organizationName", "system:masters"),),)}

    async def main() -> None:
        reviewer = Reviewer()
        request = Request("GET", "/configz", Headers(), 1)
        request.transport = Shown()
        refusal = await Gate(Serving(), reviewer, reviewer).refusal(request)
        assert refusal is not None
        assert refusal.status == 403
        assert reviewer.asked == []

    asyncio.run(main())


@pytest.mark.parametrize("comment", ["# Büro\n".encode(), "# Büro\n".encode("latin-1")])
def test_what_stands_around_the_client_authorities_does_not_matter(tmp_path: Path, comment: bytes) -> None:
    made = ensure(tmp_path, "127.0.0.1")
    (tmp_path / "clients.crt").write_bytes(comment + made.ca)
    options = Serving(client_ca_file=str(tmp_path / "clients.crt"))
    assert tls_source(options)().cert_store_stats()["x509"] == 1
    assert tls_source(Serving(), comment.decode("utf-8", "replace") + made.ca.decode().rstrip())().cert_store_stats()["x509"] == 1
    assert tls_source(options, made.ca.decode().rstrip())().verify_mode == ssl.CERT_OPTIONAL


async def shown(server: OpsServer, authority: Authority, folder: Path) -> int:
    """The status for a client with a certificate of this authority, 0 if there is no TLS with it."""
    pair, file = authority.issue("reader"), folder / "client.pem"
    file.write_bytes(pair.certificate + pair.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(file)
    try:
        async with aiohttp.ClientSession() as session, session.get(f"https://127.0.0.1:{server.port}/configz", ssl=context) as answer:
            return answer.status
    except aiohttp.ClientError:
        return 0


@pytest.mark.parametrize("given", [True, False])
def test_client_authorities_are_followed(
    given: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("koord.process.serving._RELOAD", 0.0)
    ours, other, file = Authority(), Authority(), tmp_path / "clients.crt"
    file.write_bytes(ours.certificate)
    own = ensure(tmp_path / "own", "127.0.0.1")
    files: dict[str, Any] = {"cert_file": str(own.cert_file), "key_file": str(own.key_file)} if given else {}

    async def main() -> None:
        reviewer = Reviewer()
        source = tls_source(Serving(client_ca_file=str(file), **files))
        async with served(Gate(Serving(), reviewer, reviewer), source) as server:
            assert [await shown(server, each, tmp_path) for each in (ours, other)] == [200, 0]
            file.write_text("half")
            assert await shown(server, ours, tmp_path) == 200
            assert str(file) in caplog.text
            file.write_bytes(other.certificate)
            assert [await shown(server, each, tmp_path) for each in (ours, other)] == [0, 200]

    asyncio.run(main())


def test_the_authorities_of_the_cluster_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As kube-scheduler does: kube-controller-manager writes what kube-apiserver publishes."""
    monkeypatch.setattr("koord.process.serving._RELOAD", 0.0)
    ours, other = Authority(), Authority()

    class Cluster:
        """Answers by turns; there is nothing to read after that."""

        def __init__(self) -> None:
            self.answers: list[Any] = []
            self.read = asyncio.Event()

        async def get(self, *_: Any) -> Any:
            if not self.answers:
                self.read.set()
                await asyncio.Event().wait()
            answer = self.answers.pop(0)
            if isinstance(answer, ApiError):
                raise answer
            return {"data": {"client-ca-file": answer}}

    async def main() -> None:
        cluster, reviewer, options = Cluster(), Reviewer(), Serving()
        cluster.answers.append(ours.certificate.decode())
        source = tls_source(options, await client_authority(cluster, options))
        async with served(Gate(options, reviewer, reviewer), source) as server:
            assert [await shown(server, each, tmp_path) for each in (ours, other)] == [200, 0]
            cluster.answers += [other.certificate.decode(), ApiError(503, "ServiceUnavailable", "no answer")]
            following = asyncio.create_task(follow_authority(cluster, options, source))
            await cluster.read.wait()
            assert [await shown(server, each, tmp_path) for each in (ours, other)] == [0, 200]
            following.cancel()

    asyncio.run(main())


def test_client_authorities_without_a_certificate_are_refused(tmp_path: Path) -> None:
    (tmp_path / "clients.crt").write_bytes(b"")
    with pytest.raises(ConfigurationError, match="--client-ca-file has no certificate"):
        tls_source(Serving(client_ca_file=str(tmp_path / "clients.crt")))


def test_paths_can_be_opened_for_everybody() -> None:
    async def main() -> None:
        async with served(Gate(Serving(allowed_paths=("/*",)))) as server:
            assert await ask(server, "/configz", "http") == (200, '{"a":1}')

    asyncio.run(main())


def test_a_given_certificate_is_read_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="nowhere"):
        tls_source(Serving(cert_file=str(tmp_path / "nowhere.crt"), key_file=str(tmp_path / "nowhere.key")))
