"""RBAC in the embedded API server: what Roles and bindings allow, seen with a service account's token."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from koord.apiserver.config import ServerConfig
from koord.apiserver.testing import RunningServer, running_server
from koord.kube.client import Client
from tests.support import patience

ACCOUNT = {"kind": "ServiceAccount", "namespace": "default", "name": "agent"}
RBAC = "/apis/rbac.authorization.k8s.io/v1"
MERGE_PATCH = "application/merge-patch+json"


@contextlib.asynccontextmanager
async def cluster() -> AsyncIterator[tuple[RunningServer, Client]]:
    async with running_server(config=ServerConfig(token="secret", authorization_mode="RBAC")) as server, server.client() as admin:
        status, _ = await admin.raw("POST", "/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "agent"}})
        assert status == 201
        yield server, admin


async def token(admin: Client) -> str:
    body = {"spec": {"expirationSeconds": 3600}}
    _, raw = await admin.raw("POST", "/api/v1/namespaces/default/serviceaccounts/agent/token", body)
    return str(orjson.loads(raw)["status"]["token"])


async def as_agent(server: RunningServer, bearer: str, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
    import aiohttp

    headers = {"Content-Type": MERGE_PATCH if method == "PATCH" else "application/json"}
    if bearer:
        headers["Authorization"] = f"Bearer {bearer}"
    async with aiohttp.ClientSession() as session, session.request(method, server.url + path, headers=headers, json=body) as answer:
        text = await answer.read()
        return answer.status, orjson.loads(text) if text[:1] == b"{" else text


async def grant(admin: Client, name: str, *rules: dict[str, Any], namespace: str = "") -> None:
    kind = "Role" if namespace else "ClusterRole"
    place = f"{RBAC}/namespaces/{namespace}" if namespace else RBAC
    stem = "roles" if namespace else "clusterroles"
    status, raw = await admin.raw("POST", f"{place}/{stem}", {"metadata": {"name": name}, "rules": list(rules)})
    assert status == 201, raw
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
    bindings = "rolebindings" if namespace else "clusterrolebindings"
    status, raw = await admin.raw("POST", f"{place}/{bindings}", {"metadata": {"name": name}, "roleRef": reference, "subjects": [ACCOUNT]})
    assert status == 201, raw


def rule(verbs: str, resources: str, group: str = "", **more: Any) -> dict[str, Any]:
    return {"apiGroups": [group], "resources": resources.split(), "verbs": verbs.split(), **more}


def test_nothing_is_allowed_until_a_rule_allows_it() -> None:
    async def main() -> None:
        async with cluster() as (server, admin):
            bearer = await token(admin)
            status, answer = await as_agent(server, bearer, "GET", "/api/v1/namespaces/default/pods")
            assert status == 403
            assert answer["message"] == (
                'pods is forbidden: User "system:serviceaccount:default:agent" cannot list resource "pods" '
                'in API group "" in the namespace "default"'
            )
            assert (await as_agent(server, bearer, "GET", "/apis"))[0] == 200, "discovery is everybody's"
            assert (await as_agent(server, "wrong", "GET", "/api/v1/pods"))[0] == 401
            await grant(admin, "reader", rule("list watch", "pods"), namespace="default")
            assert (await as_agent(server, bearer, "GET", "/api/v1/namespaces/default/pods"))[0] == 200
            assert (await as_agent(server, bearer, "GET", "/api/v1/namespaces/default/pods/a"))[0] == 403, "get is not list"
            assert (await as_agent(server, bearer, "GET", "/api/v1/pods"))[0] == 403, "one namespace is not all"
            await grant(admin, "everywhere", rule("list get", "pods pods/log"))
            assert (await as_agent(server, bearer, "GET", "/api/v1/pods"))[0] == 200
            assert (await as_agent(server, bearer, "GET", "/api/v1/namespaces/kube-system/pods/a"))[0] == 404

    asyncio.run(main())


def test_who_shows_no_token_is_anonymous_and_may_what_roles_allow() -> None:
    async def main() -> None:
        maps = "/api/v1/namespaces/default/configmaps"
        async with cluster() as (server, admin):
            status, answer = await as_agent(server, "", "GET", maps)
            why = 'User "system:anonymous" cannot list resource "configmaps" in API group "" in the namespace "default"'
            assert (status, answer["message"]) == (403, f"configmaps is forbidden: {why}")
            for path, code in (("/", 403), ("/apis", 403), ("/apis/example.com/v1/things", 403), ("/version", 200)):
                assert (await as_agent(server, "", "GET", path))[0] == code, path
            await grant(admin, "reader", rule("list", "configmaps"), namespace="default")
            subjects = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:unauthenticated"}]
            await admin.raw("PATCH", f"{RBAC}/namespaces/default/rolebindings/reader", {"subjects": subjects}, content_type=MERGE_PATCH)
            assert (await as_agent(server, "", "GET", maps))[0] == 200
            assert (await as_agent(server, "", "POST", maps, {"metadata": {"name": "m"}}))[0] == 403
            assert (await as_agent(server, "wrong", "GET", maps))[0] == 401

    asyncio.run(main())


def test_who_may_read_a_kind_learns_that_it_is_not_served() -> None:
    """A role waits for its definitions, or does without, only if it is told so."""

    async def main() -> None:
        async with cluster() as (server, admin):
            bearer, group = await token(admin), "/apis/example.com/v1"
            await grant(admin, "early", rule("get list watch", "things", "example.com"), rule("get", "pods/nothing"))
            for path, code in (
                (f"{group}/things", 404),
                (f"{group}/things?watch=1", 404),
                (f"{group}/namespaces/a/things/b", 404),
                (f"{group}/watch/things", 404),
                (f"{group}/others", 403),
                (f"{group}/namespaces/a/things/b/status", 403),
                ("/api/v1/namespaces/a/pods/b/nothing", 404),
                ("/apis/apps/v9/deployments", 403),
            ):
                assert (await as_agent(server, bearer, "GET", path))[0] == code, path
            _, answer = await as_agent(server, bearer, "POST", f"{group}/namespaces/a/others", {})
            assert answer["message"].endswith('cannot create resource "others" in API group "example.com" in the namespace "a"')

    asyncio.run(main())


def test_the_administrators_role_is_there() -> None:
    async def main() -> None:
        async with cluster() as (server, admin):
            bearer = await token(admin)
            reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
            binding = {"metadata": {"name": "agent"}, "roleRef": reference, "subjects": [ACCOUNT]}
            assert (await admin.raw("POST", f"{RBAC}/namespaces/default/rolebindings", binding))[0] == 201
            assert (await as_agent(server, bearer, "GET", "/api/v1/namespaces/default/pods"))[0] == 200
            assert (await as_agent(server, bearer, "GET", "/api/v1/nodes"))[0] == 403
            assert (await admin.raw("POST", f"{RBAC}/clusterrolebindings", binding))[0] == 201
            assert (await as_agent(server, bearer, "GET", "/api/v1/nodes"))[0] == 200
            assert (await as_agent(server, bearer, "GET", "/metrics"))[0] == 404, "allowed, and not there"
            everything = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
            made = {"metadata": {"name": "other"}, "rules": [everything]}
            assert (await as_agent(server, bearer, "POST", f"{RBAC}/clusterroles", made))[0] == 201, "who may all may give all"

    asyncio.run(main())


def test_a_namespace_lies_in_itself() -> None:
    async def main() -> None:
        async with cluster() as (server, admin):
            bearer = await token(admin)
            path = "/api/v1/namespaces/default"
            status, answer = await as_agent(server, bearer, "GET", path)
            assert status == 403
            assert answer["message"].endswith('cannot get resource "namespaces" in API group "" in the namespace "default"')
            await grant(admin, "own", rule("get patch", "namespaces"), namespace="default")
            assert (await as_agent(server, bearer, "GET", path))[0] == 200
            assert (await as_agent(server, bearer, "PATCH", path, {}))[0] == 200
            assert (await as_agent(server, bearer, "GET", "/api/v1/namespaces/kube-system"))[0] == 403
            status, answer = await as_agent(server, bearer, "GET", "/api/v1/namespaces?fieldSelector=metadata.name%3Ddefault")
            assert (status, answer["message"].endswith("at the cluster scope")) == (403, True)

    asyncio.run(main())


def test_names_subresources_and_wildcards() -> None:
    async def main() -> None:
        async with cluster() as (server, admin):
            bearer = await token(admin)
            await admin.raw("POST", "/api/v1/nodes", {"metadata": {"name": "mine"}})
            await admin.raw("POST", "/api/v1/nodes", {"metadata": {"name": "other"}})
            await grant(admin, "mine", rule("patch", "nodes/status", resourceNames=["mine"]), rule("get", "*", "*"))
            body = {"status": {"phase": "Running"}}
            assert (await as_agent(server, bearer, "PATCH", "/api/v1/nodes/mine/status", body))[0] == 200
            assert (await as_agent(server, bearer, "PATCH", "/api/v1/nodes/other/status", body))[0] == 403
            assert (await as_agent(server, bearer, "PATCH", "/api/v1/nodes/mine", {"metadata": {"labels": {"a": "b"}}}))[0] == 403
            assert (await as_agent(server, bearer, "GET", f"{RBAC}/clusterroles/mine"))[0] == 200
            await grant(admin, "one", rule("list", "nodes", resourceNames=["mine"]))
            assert (await as_agent(server, bearer, "GET", "/api/v1/nodes"))[0] == 403
            assert (await as_agent(server, bearer, "GET", "/api/v1/nodes?fieldSelector=metadata.name%3Dmine"))[0] == 200
            assert server.core.authorizer is not None
            assert {a.role for _, a in server.core.authorizer.used} == {"ClusterRole/mine", "ClusterRole/one"}
            assert {(w.verb, w.full_resource) for _, w in server.core.authorizer.denied} == {
                ("patch", "nodes/status"),
                ("patch", "nodes"),
                ("list", "nodes"),
            }

    asyncio.run(main())


@pytest.mark.parametrize(("verb", "allowed"), [("list", True), ("delete", False)])
def test_access_reviews_answer_what_a_request_would_meet(verb: str, allowed: bool) -> None:
    async def main() -> None:
        async with cluster() as (server, admin):
            bearer = await token(admin)
            await grant(admin, "reader", rule("list", "pods"))
            asked = {"resourceAttributes": {"verb": verb, "resource": "pods"}}
            review = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
            status, answer = await as_agent(server, bearer, "POST", review, {"spec": asked})
            assert (status, answer["status"]["allowed"]) == (201, allowed)
            other = {**asked, "user": "system:serviceaccount:default:agent"}
            _, raw = await admin.raw("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": other})
            assert orjson.loads(raw)["status"]["allowed"] is allowed
            rules = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
            _, answer = await as_agent(server, bearer, "POST", rules, {"spec": {"namespace": "default"}})
            assert ["pods"] in [r["resources"] for r in answer["status"]["resourceRules"]]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("asked", "group", "allowed"),
    [
        ({"nonResourceAttributes": {"path": "/version", "verb": "get"}}, "system:unauthenticated", True),
        ({"nonResourceAttributes": {"path": "/apis", "verb": "get"}}, "system:unauthenticated", False),
        ({"nonResourceAttributes": {"path": "/apis", "verb": "get"}}, "system:authenticated", True),
        ({"resourceAttributes": {"verb": "create", "group": "authorization.k8s.io", "resource": "selfsubjectaccessreviews"}},
         "system:authenticated", True),
        ({"resourceAttributes": {"verb": "get", "resource": "pods"}}, "system:authenticated", False),
    ],
)  # fmt: skip
def test_what_is_everybodys_is_so_in_access_reviews(asked: dict[str, Any], group: str, allowed: bool) -> None:
    async def main() -> None:
        async with cluster() as (_, admin):
            spec = {**asked, "user": "somebody", "groups": [group]}
            _, raw = await admin.raw("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": spec})
            assert orjson.loads(raw)["status"]["allowed"] is allowed

    asyncio.run(main())


def test_a_role_is_made_of_those_that_it_selects() -> None:
    async def main() -> None:
        async with cluster() as (server, admin):
            bearer, roles = await token(admin), f"{RBAC}/clusterroles"
            selectors = [{"matchLabels": {"to": "viewer"}}, {"matchExpressions": [{"key": "more", "operator": "Exists"}]}]
            whole = {"metadata": {"name": "viewer", "labels": {"to": "viewer"}}, "aggregationRule": {"clusterRoleSelectors": selectors}}
            assert (await admin.raw("POST", roles, whole))[0] == 201
            reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "viewer"}
            binding = {"metadata": {"name": "viewer"}, "roleRef": reference, "subjects": [ACCOUNT]}
            assert (await admin.raw("POST", f"{RBAC}/clusterrolebindings", binding))[0] == 201

            async def rules(until: int) -> list[dict[str, Any]]:
                found: list[dict[str, Any]] = []
                for _ in patience.tries(200):
                    found = orjson.loads((await admin.raw("GET", f"{roles}/viewer"))[1]).get("rules") or []
                    if len(found) == until:
                        break
                    await asyncio.sleep(0.01)
                return found

            for name, labels in (("a", {"to": "viewer"}), ("b", {"more": ""}), ("c", {"to": "viewer", "more": ""}), ("d", {})):
                made = {"metadata": {"name": name, "labels": labels}, "rules": [rule("list", f"pods {name}"), rule("get", "nodes")]}
                assert (await admin.raw("POST", roles, made))[0] == 201
            assert sorted(found["resources"][-1] for found in await rules(4)) == ["a", "b", "c", "nodes"]
            assert (await as_agent(server, bearer, "GET", "/api/v1/pods"))[0] == 200
            for name in "abc":
                await admin.raw("DELETE", f"{roles}/{name}")
            assert await rules(0) == []
            assert (await as_agent(server, bearer, "GET", "/api/v1/pods"))[0] == 403

    asyncio.run(main())


@pytest.mark.parametrize(
    ("selectors", "field"),
    [
        ([], "aggregationRule.clusterRoleSelectors"),
        (
            [{}, {"matchExpressions": [{"key": "a", "operator": "X"}]}],
            "aggregationRule.clusterRoleSelectors[1].matchExpressions[0].operator",
        ),
    ],
)
def test_selectors_of_roles_can_be_read(selectors: list[Any], field: str) -> None:
    async def main() -> None:
        async with cluster() as (_, admin):
            made = {"metadata": {"name": "w"}, "aggregationRule": {"clusterRoleSelectors": selectors}}
            status, answer = await admin.raw("POST", f"{RBAC}/clusterroles", made)
            assert (status, orjson.loads(answer)["details"]["causes"][0]["field"]) == (422, field)

    asyncio.run(main())


def test_only_who_may_everything_makes_roles_of_others() -> None:
    async def main() -> None:
        async with cluster() as (server, admin):
            bearer, roles = await token(admin), f"{RBAC}/clusterroles"
            await grant(admin, "author", rule("create update get", "clusterroles", "rbac.authorization.k8s.io"))
            whole = {"metadata": {"name": "w"}, "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}}
            status, answer = await as_agent(server, bearer, "POST", roles, whole)
            assert (status, "must have cluster-admin privileges to use the aggregationRule" in answer["message"]) == (403, True)
            assert (await admin.raw("POST", roles, whole))[0] == 201
            assert (await as_agent(server, bearer, "PUT", f"{roles}/w", {"metadata": {"name": "w"}, "rules": []}))[0] == 403
            strong = {"metadata": {"name": "strong"}, "rules": [rule("get", "secrets")]}
            assert (await admin.raw("POST", roles, strong))[0] == 201
            strong["metadata"]["annotations"] = {"a": "b"}
            assert (await as_agent(server, bearer, "PUT", f"{roles}/strong", strong))[0] == 200
            strong["metadata"]["labels"] = {"a": "b"}  # what `w` selects
            assert (await as_agent(server, bearer, "PUT", f"{roles}/strong", strong))[0] == 403
            everything = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
            await grant(admin, "all", everything, {"verbs": ["*"], "nonResourceURLs": ["*"]})
            whole["metadata"]["name"] = "v"
            assert (await as_agent(server, bearer, "POST", roles, whole))[0] == 201

    asyncio.run(main())


def test_another_authorization_mode_lets_nobody_in() -> None:
    with pytest.raises(ValueError, match="'Node,RBAC' is none of AlwaysAllow, RBAC"):
        ServerConfig(authorization_mode="Node,RBAC")


def test_only_reads_are_about_the_name_that_a_selector_asks_for() -> None:
    async def main() -> None:
        async with cluster() as (server, admin):
            bearer = await token(admin)
            await grant(admin, "mine", rule("get create deletecollection", "configmaps", resourceNames=["mine"]), namespace="default")
            place = "/api/v1/namespaces/default/configmaps?fieldSelector=metadata.name%3Dmine"
            for method, body in (("POST", {"metadata": {"name": "other"}}), ("POST", {"metadata": {"name": "mine"}}), ("DELETE", None)):
                status, answer = await as_agent(server, bearer, method, place, body)
                assert (status, answer["reason"]) == (403, "Forbidden")

    asyncio.run(main())


def test_an_account_is_of_the_namespace_of_its_binding_where_none_is_said() -> None:
    async def main() -> None:
        async with cluster() as (server, admin):
            bearer = await token(admin)
            await grant(admin, "reader", rule("list", "pods"), namespace="default")
            await admin.raw("DELETE", f"{RBAC}/namespaces/default/rolebindings/reader")
            assert (await as_agent(server, bearer, "GET", "/api/v1/namespaces/default/pods"))[0] == 403
            reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"}
            body = {"metadata": {"name": "b"}, "roleRef": reference, "subjects": [{"kind": "ServiceAccount", "name": "agent"}]}
            status, raw = await admin.raw("POST", f"{RBAC}/namespaces/default/rolebindings", body)
            assert status == 201, raw
            assert (await as_agent(server, bearer, "GET", "/api/v1/namespaces/default/pods"))[0] == 200

    asyncio.run(main())


def test_a_token_that_is_no_text_is_a_wrong_token() -> None:
    async def main() -> None:
        async with cluster() as (server, _):
            host, port = server.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET /api/v1/pods HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer \xff\r\nConnection: close\r\n\r\n")
            assert (await reader.readline()).split()[1] == b"401"
            writer.close()

    asyncio.run(main())
