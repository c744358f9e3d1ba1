"""Tokens of service accounts: they end with what they are bound to and at their time, not with the process."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from koord import seams
from koord.apiserver.config import ServerConfig
from koord.apiserver.disk import Disk, DiskError
from koord.apiserver.testing import running_server

CORE = "/api/v1/namespaces/default"
TOKEN = f"{CORE}/serviceaccounts/agent/token"
REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
ADMIN = ServerConfig(token="secret")
GONE = "[invalid bearer token, service account token has been invalidated]"


class Clock(seams.System):
    """Time that is set."""

    at = 1_700_000_000.0

    def now(self) -> float:
        return self.at


async def make(api: Any) -> None:
    """The administrator, an account and a pod of it."""
    api.session.headers["Authorization"] = "Bearer secret"
    await api.post(f"{CORE}/serviceaccounts", {"metadata": {"name": "agent"}})
    await api.post(f"{CORE}/pods", pod("p"))


def pod(name: str, account: str = "agent") -> dict[str, Any]:
    spec = {"serviceAccountName": account, "containers": [{"name": "c", "image": "i"}]}
    return {"metadata": {"name": name}, "spec": spec}


def to(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"spec": {"boundObjectRef": {"apiVersion": "v1", "kind": kind, "name": name, **more}}}


async def issued(api: Any, body: Any = None) -> str:
    return str((await api.post(TOKEN, body or {"spec": {}}))["status"]["token"])


async def use(api: Any, token: str) -> tuple[int, str]:
    """The status of a request with a token, and what a review says against it."""
    async with api.session.get(f"{CORE}/configmaps", headers={"Authorization": f"Bearer {token}"}) as response:
        status = response.status
    review = (await api.post(REVIEWS, {"spec": {"token": token}}))["status"]
    assert review.get("authenticated", False) == (status == 200)
    return status, review.get("error", "")


@pytest.mark.parametrize(("kind", "plural"), [("Pod", "pods"), ("Secret", "secrets"), ("Node", "nodes"), ("", "serviceaccounts")])
def test_a_token_ends_with_what_it_is_bound_to(with_api: Any, kind: str, plural: str) -> None:
    """Another object of the same name is another one."""

    async def body(api: Any) -> None:
        await make(api)
        place = "/api/v1/nodes" if kind == "Node" else f"{CORE}/{plural}"
        name = {"Pod": "p", "": "agent"}.get(kind, "other")
        if name == "other":
            await api.post(place, {"metadata": {"name": name}})
        bearer = await issued(api, to(kind, name) if kind else None)
        assert await use(api, bearer) == (200, "")
        await api.ok("DELETE", f"{place}/{name}")
        assert await use(api, bearer) == (401, GONE)
        await api.post(place, pod(name) if kind == "Pod" else {"metadata": {"name": name}})
        assert await use(api, bearer) == (401, GONE)

    with_api(body, config=ADMIN)


def test_what_waits_for_its_finalizers_counts_a_minute_longer(with_api: Any) -> None:
    clock = Clock()
    token = seams.use(clock)

    async def body(api: Any) -> None:
        await make(api)
        await api.merge(f"{CORE}/serviceaccounts/agent", {"metadata": {"finalizers": ["example.com/held"]}})
        bearer = await issued(api)
        await api.ok("DELETE", f"{CORE}/serviceaccounts/agent")
        clock.at += 59
        assert await use(api, bearer) == (200, "")
        clock.at += 2
        assert await use(api, bearer) == (401, GONE)

    try:
        with_api(body, config=ADMIN)
    finally:
        seams.leave(token)


def test_a_token_says_who_uses_it_and_until_when(with_api: Any) -> None:
    clock = Clock()
    token = seams.use(clock)

    async def body(api: Any) -> None:
        await make(api)
        body = to("Pod", "p")
        body["spec"]["expirationSeconds"] = 600
        answer = await api.post(TOKEN, body)
        assert answer["status"]["expirationTimestamp"] == "2023-11-14T22:23:20Z"
        assert answer["spec"]["audiences"] == ["https://kubernetes.default.svc"]
        bearer = answer["status"]["token"]
        said = orjson.loads(base64.urlsafe_b64decode(bearer.split(".")[1] + "=="))
        assert said["exp"] == clock.at + 600
        found = (await api.post(REVIEWS, {"spec": {"token": bearer}}))["status"]
        uids = [(await api.get(f"{CORE}/{place}"))["metadata"]["uid"] for place in ("serviceaccounts/agent", "pods/p")]
        extra = found["user"].pop("extra")
        assert found == {
            "authenticated": True,
            "audiences": ["https://kubernetes.default.svc"],
            "user": {
                "username": "system:serviceaccount:default:agent",
                "uid": uids[0],
                "groups": ["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"],
            },
        }
        assert extra == {
            "authentication.kubernetes.io/credential-id": [f"JTI={said['jti']}"],
            "authentication.kubernetes.io/pod-name": ["p"],
            "authentication.kubernetes.io/pod-uid": [uids[1]],
        }
        clock.at += 600
        assert await use(api, bearer) == (401, "[invalid bearer token, service account token has expired]")

    try:
        with_api(body, config=ADMIN)
    finally:
        seams.leave(token)


def test_a_token_counts_for_its_audiences(with_api: Any) -> None:
    async def body(api: Any) -> None:
        await make(api)
        bearer = await issued(api, {"spec": {"audiences": ["vault", "mail"]}})
        assert (await use(api, bearer))[0] == 401
        found = (await api.post(REVIEWS, {"spec": {"token": bearer, "audiences": ["mail", "other"]}}))["status"]
        assert (found["authenticated"], found["audiences"]) == (True, ["mail"])
        found = (await api.post(REVIEWS, {"spec": {"token": bearer, "audiences": ["other"]}}))["status"]
        why = 'token audiences ["vault","mail"] is invalid for the target audiences ["other"]'
        assert found == {"error": f"[invalid bearer token, {why}]"}

    with_api(body, config=ADMIN)


def test_what_no_token_is_made_for(with_api: Any) -> None:
    async def body(api: Any) -> None:
        await make(api)
        await api.post(f"{CORE}/pods", pod("other", "default"))
        wrong: list[tuple[dict[str, Any], int, str]] = [
            ({"spec": {"expirationSeconds": 599}}, 422, "may not specify a duration less than 10 minutes"),
            ({"spec": {"expirationSeconds": 0}}, 422, "may not specify a duration less than 10 minutes"),
            ({"spec": {"expirationSeconds": 2**32 + 1}}, 422, "may not specify a duration larger than 2^32 seconds"),
            ({"spec": {"expirationSeconds": "soon"}}, 400, ""),
            ({"spec": "x"}, 400, ""),
            ({"metadata": {"name": "other"}, "spec": {}}, 422, "must match the service account name if specified"),
            (to("Pod", "missing"), 404, 'pods "missing" not found'),
            (to("Secret", "missing"), 404, 'secrets "missing" not found'),
            (to("Pod", "p", uid="another"), 409, "the UID in the bound object reference (another) does not match the UID in record."),
            (to("Pod", "other"), 400, "to pod running with different serviceaccount name."),
            (to("ConfigMap", "p"), 400, 'cannot bind token for serviceaccount "agent" to v1, Kind=ConfigMap'),
        ]
        for body, status, why in wrong:
            found, answer = await api.call("POST", TOKEN, body)
            assert (found, answer["kind"]) == (status, "Status"), answer
            assert why in answer["message"]
        await api.ok("POST", TOKEN, {"spec": {"expirationSeconds": 2**32}})
        assert (await api.call("POST", f"{CORE}/serviceaccounts/missing/token", {"spec": {}}))[0] == 404
        assert (await api.call("POST", f"{CORE}/pods/p/eviction", {"metadata": "p"}))[0] == 400

    with_api(body, config=ADMIN)


def test_what_is_no_token_of_this_server(with_api: Any) -> None:
    """Where everybody is let in without a token, one that has ended makes no administrator of its bearer."""

    async def body(api: Any) -> None:
        await api.post(f"{CORE}/serviceaccounts", {"metadata": {"name": "agent"}})
        bearer = await issued(api)
        head, content, signature = bearer.split(".")
        said = orjson.loads(base64.urlsafe_b64decode(content + "=="))
        said["sub"] = "system:serviceaccount:kube-system:admin"
        other = base64.urlsafe_b64encode(orjson.dumps(said)).decode().rstrip("=")
        for wrong in (f"{head}.{other}.{signature}", f"{head}.{content}.", f"{head}.{content}.{signature}x", f"{head}.{content}.\u00e9"):
            async with api.session.get(f"{CORE}/pods", headers={"Authorization": f"Bearer {wrong}"}) as response:
                assert response.status == 401
        await api.get(f"{CORE}/pods")

    with_api(body)


def test_tokens_of_a_data_directory_outlive_the_server(tmp_path: Path) -> None:
    config = ServerConfig(token="secret", data_dir=tmp_path)

    async def life(act: Any) -> Any:
        async with running_server(config=config) as server:
            headers = {"Authorization": "Bearer secret"}
            async with aiohttp.ClientSession(server.url, headers=headers) as session:
                return await act(session)

    async def first(session: aiohttp.ClientSession) -> list[str]:
        await session.post(f"{CORE}/serviceaccounts", json={"metadata": {"name": "agent"}})
        await session.post(f"{CORE}/pods", json=pod("p"))
        found = []
        for body in ({"spec": {}}, to("Pod", "p")):
            async with session.post(TOKEN, json=body) as response:
                found.append((await response.json())["status"]["token"])
        return found

    async def states(session: aiohttp.ClientSession, tokens: list[str]) -> list[int]:
        out = []
        for bearer in tokens:
            async with session.get(f"{CORE}/pods", headers={"Authorization": f"Bearer {bearer}"}) as response:
                out.append(response.status)
        return out

    async def second(session: aiohttp.ClientSession) -> list[int]:
        before = await states(session, tokens)
        await session.delete(f"{CORE}/pods/p")
        return before + await states(session, tokens)

    tokens = asyncio.run(life(first))
    assert asyncio.run(life(second)) == [200, 200, 200, 401]
    assert (tmp_path / "service-accounts.key").stat().st_mode & 0o777 == 0o600


def test_a_file_that_holds_no_key_is_told(tmp_path: Path) -> None:
    file = tmp_path / "service-accounts.key"
    for content in ("", "abc\n", "zz" * 32):
        file.write_text(content)
        disk = Disk(tmp_path)
        with pytest.raises(DiskError, match=r"service-accounts\.key holds no key"):
            disk.signing_key()
        disk.close()
