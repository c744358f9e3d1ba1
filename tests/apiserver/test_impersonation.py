"""Impersonation headers: who counts as whom, and who may say so."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp

from koord.apiserver.testing import RunningServer
from tests.apiserver.test_rbac import cluster, grant, rule, token

WHO = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


async def who(server: RunningServer, bearer: str, *headers: tuple[str, str]) -> tuple[int, Any]:
    sent = [("Authorization", f"Bearer {bearer}"), *headers]
    async with aiohttp.ClientSession() as session, session.post(server.url + WHO, headers=sent, json={}) as answer:
        return answer.status, await answer.json()


def test_the_administrator_counts_as_whom_he_names() -> None:
    async def main() -> None:
        async with cluster() as (server, _):
            status, answer = await who(server, "secret", ("Impersonate-User", "system:serviceaccount:shop:web"))
            assert status == 201
            assert answer["status"]["userInfo"]["username"] == "system:serviceaccount:shop:web"
            assert answer["status"]["userInfo"]["groups"] == [
                "system:serviceaccounts", "system:serviceaccounts:shop", "system:authenticated",
            ]  # fmt: skip
            headers = (("Impersonate-User", "jane"), ("Impersonate-Group", "a"), ("Impersonate-Group", "b"))
            _, answer = await who(server, "secret", *headers)
            assert answer["status"]["userInfo"] == {"username": "jane", "groups": ["a", "b", "system:authenticated"]}
            status, answer = await who(server, "secret", ("Impersonate-Group", "a"))
            assert (status, "without impersonating a user" in answer["message"]) == (400, True)

    asyncio.run(main())


def test_others_need_the_verb_and_get_the_rights_of_the_other() -> None:
    async def main() -> None:
        async with cluster() as (server, admin):
            bearer = await token(admin)
            other = ("Impersonate-User", "system:serviceaccount:default:other")
            status, answer = await who(server, bearer, other)
            assert status == 403
            assert 'cannot impersonate resource "serviceaccounts" in API group "" in the namespace "default"' in answer["message"]
            await grant(admin, "actor", rule("impersonate", "serviceaccounts", resourceNames=["other"]), namespace="default")
            assert (await who(server, bearer, other))[0] == 201
            assert (await who(server, bearer, other, ("Impersonate-Group", "system:masters")))[0] == 403, "groups are asked for, too"
            headers = {"Authorization": f"Bearer {bearer}", "Impersonate-User": other[1]}
            await grant(admin, "reader", rule("list", "pods"))
            async with aiohttp.ClientSession() as session, session.get(server.url + "/api/v1/pods", headers=headers) as refused:
                assert refused.status == 403, "the asker's own rights do not count"

    asyncio.run(main())
