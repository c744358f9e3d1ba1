"""Admission webhooks: mutating ones in order, validating ones at once."""

from __future__ import annotations

import asyncio
import base64
import binascii
from typing import TYPE_CHECKING, Any

import orjson

from koord.apiserver.admission.attributes import Attributes
from koord.apiserver.admission.matching import describe, in_version
from koord.apiserver.admission.webhook_call import Caller, CallError, Unresolvable
from koord.apiserver.admission.webhook_rules import ConditionError, Hook, compile_hooks, wanted
from koord.apiserver.errors import StatusError, bad_request, forbidden, internal
from koord.apiserver.rest.meta import new_uid
from koord.kube.patch import apply_json_patch
from koord.kube.patch_errors import PatchError

if TYPE_CHECKING:
    from koord.apiserver.core import Core
    from koord.apiserver.resources import Resource
    from koord.apiserver.store import Event

Obj = dict[str, Any]

_GROUP = "admissionregistration.k8s.io"
MUTATING_BUCKET = f"{_GROUP}/mutatingwebhookconfigurations"
VALIDATING_BUCKET = f"{_GROUP}/validatingwebhookconfigurations"


class WebhookAdmission:
    """The registered webhooks; `active` is False while there are none, and writes then wait for nobody."""

    def __init__(self, core: Core, *, mutating: bool, validating: bool) -> None:
        self.core = core
        self.active = False
        self._caller = Caller(core)
        self._mutating: list[Hook] = []
        self._validating: list[Hook] = []
        for on, name in ((mutating, MUTATING_BUCKET), (validating, VALIDATING_BUCKET)):
            if on:
                core.store.bucket(name).listeners.append(self._on_change)
        self._on = (mutating, validating)
        self._reload()

    def _on_change(self, event: Event) -> None:
        self._reload()

    def _reload(self) -> None:
        for on, name, attribute in zip(self._on, (MUTATING_BUCKET, VALIDATING_BUCKET), ("_mutating", "_validating"), strict=True):
            setattr(self, attribute, compile_hooks([e.obj for e in self.core.store.bucket(name).entries.values()], self.core) if on else [])
        self.active = bool(self._mutating or self._validating)

    def _matching(self, hook: Hook, attributes: Attributes) -> Resource | None:
        """The resource (version) in which a webhook is asked; None when it is not. Raises StatusError for conditions that fail."""
        try:
            return wanted(self.core, hook, attributes)
        except ConditionError as error:
            if hook.ignore_failure:
                return None
            raise forbidden(attributes.resource.plural, attributes.resource.group, attributes.name, str(error)) from None

    async def close(self) -> None:
        """Close the connections to webhooks."""
        await self._caller.close()

    # -- mutating ----------------------------------------------------------------------------------------------------------------

    async def mutate(self, attributes: Attributes) -> None:
        """Call the mutating webhooks in order; those that asked for it again after a later one changed the object."""
        called: list[Hook] = []
        changed_after: set[str] = set()
        for hook in self._mutating:
            resource = self._matching(hook, attributes)
            if resource is None:
                continue
            if await self._mutate_by(hook, resource, attributes):
                changed_after |= {f"{h.configuration}/{h.name}" for h in called if h.reinvoke}
            called.append(hook)
        for hook in called:
            if f"{hook.configuration}/{hook.name}" in changed_after:
                resource = self._matching(hook, attributes)
                if resource is not None:
                    await self._mutate_by(hook, resource, attributes)

    async def _mutate_by(self, hook: Hook, resource: Resource, attributes: Attributes) -> bool:
        """Call one webhook and apply its patch; True when the object changed."""
        response = await self._ask(hook, resource, attributes)
        if response is None or not response.get("patch"):
            return False
        if response.get("patchType") != "JSONPatch":
            raise internal(f'admission webhook "{hook.name}": unsupported patch type {response.get("patchType")!r}; accepted: JSONPatch')
        if attributes.obj is None:
            raise internal(f'admission webhook "{hook.name}" attempted to modify the object, which is not supported for this operation')
        try:
            operations = orjson.loads(base64.b64decode(response["patch"], validate=True))
            before = in_version(attributes.obj, resource)
            after = apply_json_patch(before, operations)
        except (binascii.Error, orjson.JSONDecodeError, PatchError) as err:
            raise internal(f'admission webhook "{hook.name}": patch: {err}') from err
        if after == before:
            return False
        after = orjson.loads(orjson.dumps(after))
        after["apiVersion"] = attributes.obj.get("apiVersion", resource.api_version)
        attributes.obj = after
        return True

    # -- validating --------------------------------------------------------------------------------------------------------------

    async def validate(self, attributes: Attributes) -> None:
        """Call the validating webhooks together; the first refusal, in order, is the answer."""
        asked = [(h, r) for h in self._validating if (r := self._matching(h, attributes)) is not None]
        if not asked:
            return
        outcomes = await asyncio.gather(*(self._ask(h, r, attributes) for h, r in asked), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    # -- one call ----------------------------------------------------------------------------------------------------------------

    async def _ask(self, hook: Hook, resource: Resource, attributes: Attributes) -> Obj | None:
        """The response of a webhook that allows; None when its failure is ignored. Raises StatusError for a refusal."""
        if attributes.options.dry_run and not hook.dry_run_safe:
            raise bad_request(f'admission webhook "{hook.name}" does not support dry run')
        review = self._review(resource, attributes)
        try:
            response = await self._caller.call(hook, review)
        except Unresolvable as err:
            if hook.ignore_failure or self.core.config.unresolvable_webhooks == "ignore":
                attributes.options.warnings.append(f'webhook "{hook.name}" skipped: {err}')
                return None
            raise internal(f'failed calling webhook "{hook.name}": failed to call webhook: {err}') from err
        except CallError as err:
            if hook.ignore_failure:
                return None
            raise internal(f'failed calling webhook "{hook.name}": failed to call webhook: {err}') from err
        attributes.options.warnings.extend(str(w) for w in response.get("warnings") or ())
        if not response.get("allowed"):
            raise _denied(hook, response.get("status") or response.get("result") or {})
        return response

    @staticmethod
    def _review(resource: Resource, attributes: Attributes) -> Obj:
        request = {
            "uid": new_uid(),
            **describe(resource, attributes),
            "object": in_version(attributes.obj, resource) if attributes.obj is not None else None,
            "oldObject": in_version(attributes.old, resource) if attributes.old is not None else None,
        }
        return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}


def _denied(hook: Hook, result: Obj) -> StatusError:
    by = f'admission webhook "{hook.name}" denied the request'
    text = result.get("message") or result.get("reason")
    code = int(result.get("code") or 0)
    err = StatusError(max(code, 400), str(result.get("reason") or ""), f"{by}: {text}" if text else f"{by} without explanation")
    err.details = result.get("details")
    return err
