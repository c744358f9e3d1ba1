"""What an account may do, asked of the API server by access reviews."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import orjson

from koord.kube.client import PATIENCE, Client
from koord.kube.errors import ApiError, Forbidden, from_response
from roles.tools.doctor.facts import ClusterFacts, Obj, RightsFacts
from roles.tools.doctor.rights import ACCOUNTS, Question, questions

_REVIEWS = "/apis/authorization.k8s.io/v1"
_AT_ONCE = 20
NOBODY = "koord-doctor:nobody"  # a user that no cluster has


class Access:
    """Asks as the client's own identity, as one that it may impersonate, or about one."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def whoami(self) -> str:
        """Our own name, "" where the server does not tell (before Kubernetes 1.28). Raises ApiError, Unauthorized among them."""
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        status, raw = await self._client.raw("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body)
        if status == 401:
            raise from_response(status, raw)
        if status != 201:
            return ""
        info = (orjson.loads(raw).get("status") or {}).get("userInfo") or {}
        return str(info.get("username") or "")

    async def of(self, role: str, documents: list[Obj], facts: ClusterFacts, acting_as: str) -> RightsFacts:
        """The rights of a role. Its own pod asks for itself; others impersonate its account, or ask about it where that is refused."""
        asked = questions(documents, ACCOUNTS[role])
        account = f"system:serviceaccount:{facts.namespace}:{ACCOUNTS[role]}"
        if acting_as or facts.user == account:
            return await self._self(role, asked, acting_as or account, impersonate=bool(acting_as))
        found = await self._self(role, asked, account, impersonate=True)
        return await self._about(role, asked, account) if found.error else found

    async def held(self, role: str, asked: list[Question], facts: ClusterFacts) -> tuple[tuple[Question, ...], str]:
        """Which of the questions a role's account is allowed, and why that could not be asked."""
        account = f"system:serviceaccount:{facts.namespace}:{ACCOUNTS[role]}"
        found = await self._about(role, asked, account)
        denied = set(found.denied)
        return tuple(question for question in asked if not found.error and str(question) not in denied), found.error

    async def unguarded(self, question: Question) -> bool:
        """Whether an account that does not exist is allowed this too."""
        spec = {"resourceAttributes": question.wire(), "user": NOBODY, "groups": ["system:authenticated"]}
        status, raw = await self._client.raw("POST", f"{_REVIEWS}/subjectaccessreviews", {"spec": spec})
        return status == 201 and (orjson.loads(raw).get("status") or {}).get("allowed") is True

    async def _self(self, role: str, asked: list[Question], who: str, *, impersonate: bool) -> RightsFacts:
        if not impersonate:
            return await self._all(role, asked, who, self._client, "selfsubjectaccessreviews", {})
        config = self._client.transport.config
        # Groups of a service account are filled in by the server when none are named.
        as_other = replace(config, headers=(*config.headers, ("Impersonate-User", who)))
        async with Client(as_other, role="doctor", patience=PATIENCE) as client:
            return await self._all(role, asked, who, client, "selfsubjectaccessreviews", {})

    async def _about(self, role: str, asked: list[Question], account: str) -> RightsFacts:
        namespace = account.split(":")[2]
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
        return await self._all(role, asked, account, self._client, "subjectaccessreviews", {"user": account, "groups": groups})

    async def _all(self, role: str, asked: list[Question], who: str, client: Client, reviews: str, subject: Obj) -> RightsFacts:
        gate = asyncio.Semaphore(_AT_ONCE)

        async def allowed(question: Question) -> bool:
            async with gate:
                body = {"spec": {"resourceAttributes": question.wire(), **subject}}
                status, raw = await client.raw("POST", f"{_REVIEWS}/{reviews}", body)
            if status != 201:
                raise from_response(status, raw)
            return (orjson.loads(raw).get("status") or {}).get("allowed") is True

        try:
            if asked:
                await allowed(asked[0])  # a refusal of the question itself is told once
            answers = await asyncio.gather(*(allowed(question) for question in asked), return_exceptions=True)
            if (failed := next((one for one in answers if isinstance(one, BaseException)), None)) is not None:
                raise failed
        except Forbidden as error:
            return RightsFacts(role, asked_as=who, error=error.message)
        except ApiError as error:
            return RightsFacts(role, asked_as=who, error=str(error))
        denied = tuple(str(question) for question, answer in zip(asked, answers, strict=True) if not answer)
        return RightsFacts(role, len(asked), denied, who)
