"""Admission webhooks: mutating ones in order, validating ones at once."""

from __future__ import annotations

import asyncio
import base64
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import aiohttp
import orjson
from cachetools import LRUCache

from koord import seams
from koord.apiserver.admission.matching import Attributes, Match, compile_match, describe, in_version, matching_resource
from koord.apiserver.errors import StatusError, bad_request, forbidden, internal
from koord.apiserver.store import Event, Obj
from koord.kube.config import KubeConfigError
from koord.kube.errors import PatchError
from koord.kube.patch import apply_json_patch, json_equal
from koord.kube.tls import authorities

if TYPE_CHECKING:
    from koord.apiserver.cel.environment import Environment, Program
    from koord.apiserver.resources import Resource
    from koord.apiserver.state import State


@dataclass(frozen=True, slots=True)
class Hook:
    """One registered webhook: as it stands in its configuration, and what it looks at."""

    raw: Obj
    match: Match
    conditions: tuple[Program, ...] = ()
    env: Environment | None = None
    """What the conditions are evaluated in."""

    @property
    def name(self) -> str:
        return str(self.raw["name"])

    @property
    def ignore_failure(self) -> bool:
        return self.raw.get("failurePolicy") == "Ignore"


def compile_hooks(configurations: list[Obj], state: State) -> list[Hook]:
    """All webhooks in calling order: by configuration name, then as listed."""
    ordered = sorted(configurations, key=lambda c: c["metadata"]["name"])
    hooks = [raw for configuration in ordered for raw in configuration.get("webhooks") or ()]
    return [Hook(raw, compile_match(raw, "rules"), *_conditions(raw, state)) for raw in hooks]


def _conditions(raw: Obj, state: State) -> tuple[tuple[Program, ...], Environment | None]:
    if not raw.get("matchConditions"):
        return (), None
    from koord.apiserver.cel.policy import answers, environment, match_conditions

    env = environment(answers(state))
    return match_conditions(raw["matchConditions"], env, "", []), env


_VERSIONS = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")
_INVALID = "received invalid webhook response"


class CallError(Exception):
    """A webhook that could not be asked, or whose answer is no AdmissionReview."""


class Unresolvable(CallError):
    """A webhook behind a Service that leads nowhere here."""


class Caller:
    """Posts AdmissionReviews; connections are kept."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._session: aiohttp.ClientSession | None = None
        self._contexts: LRUCache[str, ssl.SSLContext] = LRUCache(64)

    async def close(self) -> None:
        """Close the connections to webhooks."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _context(self, bundle: str) -> ssl.SSLContext:
        """TLS with the webhook's own authority, or the system's where it names none."""
        context = self._contexts.get(bundle)
        if context is None:
            try:
                pem = authorities(base64.b64decode(bundle), "clientConfig", "caBundle") if bundle else None
                context = ssl.create_default_context(cadata=pem)
            except (ValueError, TypeError, ssl.SSLError, KubeConfigError) as err:  # TypeError: a certificate that is not ASCII inside
                raise CallError(f"failed to call webhook: caBundle: {err}") from err
            self._contexts[bundle] = context
        return context

    def _address(self, hook: Hook) -> tuple[str, str]:
        """(URL, server name for TLS). Raises Unresolvable."""
        client = hook.raw["clientConfig"]
        if client.get("url"):
            return str(client["url"]), urlsplit(client["url"]).hostname or ""
        service = client["service"]
        where = f"{service.get('namespace')}/{service.get('name')}"
        address = self.state.config.webhook_services.get(where) or self._endpoint(service)
        if address is None:
            raise Unresolvable(f"failed to call webhook: service {where} has no address that this server could reach")
        path = service.get("path") or "/"
        return f"https://{address}{path}", f"{service.get('name')}.{service.get('namespace')}.svc"

    def _endpoint(self, service: Obj) -> str | None:
        """host:port of the first ready address behind a Service, by its Endpoints."""
        namespace, name = service.get("namespace") or "", service.get("name") or ""
        endpoints = self.state.store.bucket("/endpoints").get(namespace, name)
        for subset in (endpoints.obj.get("subsets") or ()) if endpoints else ():
            addresses, ports = subset.get("addresses") or (), subset.get("ports") or ()
            if addresses and ports:
                return f"{addresses[0]['ip']}:{self._port(namespace, name, service.get('port', 443), ports)}"
        return None

    def _port(self, namespace: str, name: str, port: int, ports: list[Obj]) -> int:
        """The endpoint port behind a service port: matched by the port's name, else the only one there is."""
        entry = self.state.store.bucket("/services").get(namespace, name)
        for known in (entry.obj["spec"].get("ports") or ()) if entry else ():
            if known.get("port") == port:
                for candidate in ports:
                    if candidate.get("name") == known.get("name"):
                        return int(candidate["port"])
        return int(ports[0]["port"])

    async def call(self, hook: Hook, review: Obj) -> Obj:
        """Ask; returns the response of the review. Raises CallError."""
        url, server_name = self._address(hook)
        version = next((v for v in hook.raw.get("admissionReviewVersions") or ("v1",) if v in ("v1", "v1beta1")), "v1")
        body = orjson.dumps({**review, "apiVersion": f"admission.k8s.io/{version}"})
        if self._session is None:
            self._session = aiohttp.ClientSession()
        seconds = float(hook.raw.get("timeoutSeconds", 10))
        url += f"{'&' if '?' in url else '?'}timeout={seconds:g}s"
        tls: dict[str, Any] = {}
        if url.startswith("https:"):
            tls = {"ssl": self._context(hook.raw["clientConfig"].get("caBundle") or ""), "server_hostname": server_name}
        try:
            async with self._session.post(
                url,
                data=body,
                headers={"Content-Type": "application/json", "Accept": "application/json"},
                timeout=aiohttp.ClientTimeout(total=seconds),
                allow_redirects=False,
                **tls,
            ) as response:
                raw = await response.read()
                status = response.status
        except TimeoutError as err:
            raise CallError(f'failed to call webhook: Post "{url}": context deadline exceeded') from err
        except (aiohttp.ClientError, OSError, asyncio.IncompleteReadError) as err:
            raise CallError(f'failed to call webhook: Post "{url}": {err}') from err
        if not 200 <= status < 300:
            raise CallError(f"failed to call webhook: the server responded with the status code {status}")
        return _response(raw, review["request"]["uid"])


def _response(raw: bytes, uid: str) -> Obj:
    try:
        answer = orjson.loads(raw)
    except orjson.JSONDecodeError as err:
        raise CallError(f"failed to call webhook: the answer is no JSON: {err}") from err
    if not isinstance(answer, dict) or answer.get("kind") != "AdmissionReview" or answer.get("apiVersion") not in _VERSIONS:
        raise CallError("failed to call webhook: expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview")
    response = answer.get("response")
    if not isinstance(response, dict):
        raise CallError(f"{_INVALID}: webhook response was absent")
    if response.get("uid") != uid:
        raise CallError(f'{_INVALID}: expected response.uid="{uid}", got "{response.get("uid") or ""}"')
    _check_shapes(response, _SHAPES, "response")
    for part in ("status", "result"):
        _check_shapes(response.get(part) or {}, _STATUS_SHAPES, f"response.{part}")
    if response.get("patch") and not response.get("patchType"):
        raise CallError(f"{_INVALID}: webhook returned response.patch but not response.patchType")
    return response


_SHAPES = {"allowed": bool, "patch": str, "patchType": str, "status": dict, "result": dict, "warnings": list, "auditAnnotations": dict}
_STATUS_SHAPES = {"message": str, "reason": str, "code": int, "details": dict}


def _check_shapes(found: Obj, shapes: dict[str, type], path: str) -> None:
    for key, shape in shapes.items():
        if found.get(key) is not None and not isinstance(found[key], shape):
            raise CallError(f"{_INVALID}: {path}.{key} is {type(found[key]).__name__}; accepted: {shape.__name__}")


def _operations(response: Obj) -> list[Obj]:
    """The patch of a mutating webhook's answer. Raises CallError."""
    try:
        found = orjson.loads(base64.b64decode(response["patch"], validate=True))
    except ValueError as err:
        raise CallError(f"received undecodable patch in webhook response: {err}") from err
    if not isinstance(found, list):
        raise CallError("received undecodable patch in webhook response: it is no list of operations")
    if found and response["patchType"] != "JSONPatch":
        raise CallError(f'unsupported patch type "{response["patchType"]}"')
    return found


_MUTATING = "admissionregistration.k8s.io/mutatingwebhookconfigurations"
_VALIDATING = "admissionregistration.k8s.io/validatingwebhookconfigurations"


class WebhookAdmission:
    """The registered webhooks; `active` is False while there are none, and writes then wait for nobody."""

    def __init__(self, state: State, *, mutating: bool, validating: bool) -> None:
        self.state = state
        self.caller = Caller(state)
        # by the bucket of their configurations; of those that are on
        self._hooks: dict[str, list[Hook]] = {name: [] for name, on in ((_MUTATING, mutating), (_VALIDATING, validating)) if on}
        for name in self._hooks:
            state.store.bucket(name).listeners.append(self._reload)
        self._reload()

    def _reload(self, event: Event | None = None) -> None:
        """Take over what is stored now."""
        for name in self._hooks:
            self._hooks[name] = compile_hooks([entry.obj for entry in self.state.store.bucket(name).entries.values()], self.state)
        self.active = any(self._hooks.values())

    def _matching(self, hook: Hook, attributes: Attributes) -> Resource | None:
        """The resource (version) in which a webhook is asked; None when it is not. Raises StatusError for conditions that fail."""
        found = matching_resource(self.state, hook.match, attributes) if hook.match.rules is not None else None
        if found is None or hook.env is None:
            return found
        from koord.apiserver.cel.environment import CelError
        from koord.apiserver.cel.policy import meets, values

        try:
            return found if meets(hook.conditions, hook.env.bind(values(self.state, found, attributes))) else None
        except CelError as error:
            if hook.ignore_failure:
                return None
            raise forbidden(attributes.resource.plural, attributes.resource.group, attributes.name, str(error)) from None

    # -- mutating ----------------------------------------------------------------------------------------------------------------

    async def mutate(self, attributes: Attributes) -> list[Hook] | None:
        """Call the mutating webhooks in order. Returns those that were called before one that changed the object; None if none did."""
        called: list[Hook] = []
        before: list[Hook] | None = None
        for hook in self._hooks.get(_MUTATING, ()):
            resource = self._matching(hook, attributes)
            if resource is not None:
                if await self._mutate_by(hook, resource, attributes):
                    before = [*called]
                called.append(hook)
        return before

    async def mutate_again(self, hooks: list[Hook], attributes: Attributes) -> None:
        """Call those again that asked for it."""
        for hook in hooks:
            resource = self._matching(hook, attributes) if hook.raw.get("reinvocationPolicy") == "IfNeeded" else None
            if resource is not None:
                await self._mutate_by(hook, resource, attributes)

    async def _mutate_by(self, hook: Hook, resource: Resource, attributes: Attributes) -> bool:
        """Call one webhook and apply its patch; True when the object changed."""
        operations = await self._ask(hook, resource, attributes)
        if not operations:
            return False
        if attributes.obj is None:
            raise internal(f'admission webhook "{hook.name}" attempted to modify the object, which is not supported for this operation')
        try:
            before = in_version(attributes.obj, resource, attributes.subresource)
            after = apply_json_patch(before, operations, lenient=True)
        except PatchError as err:
            raise internal(f'admission webhook "{hook.name}": patch: {err}') from err
        if json_equal(after, before):
            return False
        if not isinstance(after, dict) or type(after.get("metadata")) is not type(before.get("metadata")):
            raise internal(f'admission webhook "{hook.name}": patch: what is left is no object with metadata')
        after = orjson.loads(orjson.dumps(after))
        after["apiVersion"] = attributes.obj.get("apiVersion", before["apiVersion"])
        try:  # whoever is asked next sees it with its defaults
            attributes.obj = attributes.reread(after)
        except StatusError as err:
            raise internal(err.message) from err
        return True

    # -- validating --------------------------------------------------------------------------------------------------------------

    async def validate(self, attributes: Attributes) -> None:
        """Call the validating webhooks together; the first refusal, in order, is the answer."""
        asked = [(h, r) for h in self._hooks.get(_VALIDATING, ()) if (r := self._matching(h, attributes)) is not None]
        if not asked:
            return
        asking = (self._ask(hook, resource, attributes, mutating=False) for hook, resource in asked)
        outcomes = await asyncio.gather(*asking, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    # -- one call ----------------------------------------------------------------------------------------------------------------

    async def _ask(self, hook: Hook, resource: Resource, attributes: Attributes, *, mutating: bool = True) -> list[Obj]:
        """The patch of a webhook that allows; none when its failure is ignored. Raises StatusError for a refusal."""
        if attributes.options.dry_run and hook.raw.get("sideEffects") not in ("None", "NoneOnDryRun"):
            raise bad_request(f'admission webhook "{hook.name}" does not support dry run')
        request = {
            "uid": seams.uid(),
            **describe(resource, attributes),
            "object": in_version(attributes.obj, resource, attributes.subresource) if attributes.obj is not None else None,
            "oldObject": in_version(attributes.old, resource, attributes.subresource) if attributes.old is not None else None,
        }
        try:
            response = await self.caller.call(hook, {"kind": "AdmissionReview", "request": request})
            allowed = bool(response.get("allowed"))
            if not mutating and (response.get("patch") or response.get("patchType")):
                part = "patch" if response.get("patch") else "patchType"
                raise CallError(f"{_INVALID}: validating webhook may not return response.{part}")
            operations = _operations(response) if allowed and response.get("patch") else []
        except CallError as err:
            lost = isinstance(err, Unresolvable)
            if not hook.ignore_failure and not (lost and self.state.config.unresolvable_webhooks == "ignore"):
                raise internal(f'failed calling webhook "{hook.name}": {err}') from err
            if lost:
                attributes.options.warnings.append(f'webhook "{hook.name}" skipped: {err}')
            return []
        attributes.options.warnings.extend(str(w) for w in response.get("warnings") or ())
        if not allowed:
            raise _denied(hook, response.get("status") or response.get("result") or {})
        return operations


def _denied(hook: Hook, result: Obj) -> StatusError:
    by = f'admission webhook "{hook.name}" denied the request'
    text = result.get("message") or result.get("reason")
    code = int(result.get("code") or 0)
    err = StatusError(max(code, 400), str(result.get("reason") or ""), f"{by}: {text}" if text else f"{by} without explanation")
    err.details = result.get("details")
    return err
