"""Self-registration of the webhook configurations (MGR-WH-03): computed, then written on difference."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any

import msgspec
import orjson

from koord.api.kinds import MUTATINGWEBHOOKCONFIGURATIONS, VALIDATINGWEBHOOKCONFIGURATIONS, Kind
from koord.kube.client import Client
from koord.kube.errors import AlreadyExists, ApiError, Invalid, NotFound
from koord.kube.patch import json_equal
from koord.kube.references import ObjectRef, reference
from roles.manager.options import WEBHOOK_RESOURCES, WebhookOptions
from roles.manager.webhooks.registry import WEBHOOKS, Registration, Webhook

TEMPLATE = "template"
"""Annotation that keeps the `webhooks` list as it was installed; every sync starts from it."""


REMOVED = "removed-webhooks"
"""Annotation with the names, separated by commas, of webhooks that the user does not want: they are not added to the template."""

_NAMESPACE = re.compile(r"(?<![\w-])koordinator-system(?![\w-])")


class _Client(msgspec.Struct):
    service: dict[str, Any] | None = None
    url: str | None = None


class _Rule(msgspec.Struct):
    resources: list[str] | None = None


class _Shape(msgspec.Struct, rename="camel"):
    """What of a template's entries is read here. The rest is for the API server to judge."""

    name: str
    client_config: _Client | None = None
    rules: list[_Rule] | None = None
    match_conditions: list[dict[str, Any]] | None = None


def default_entries(mutating: bool) -> list[dict[str, Any]]:
    """The `webhooks` list that we install where the manifests did not; our own namespace is left alone by the pods' webhooks."""
    return [_entry(webhook, registration) for webhook in WEBHOOKS if webhook.mutating is mutating for registration in webhook.registrations]


def _entry(webhook: Webhook, registration: Registration) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": registration.name,
        "clientConfig": {
            "service": {"name": "koordinator-webhook-service", "namespace": "koordinator-system", "path": webhook.path, "port": 443}
        },
        "admissionReviewVersions": ["v1", "v1beta1"],
        "sideEffects": "None",
        "failurePolicy": "Ignore" if registration.ignore else "Fail",
        "matchPolicy": "Equivalent",
        "timeoutSeconds": 10,
        "namespaceSelector": registration.namespace_selector or {},
        "objectSelector": registration.object_selector or {},
        "rules": [
            {
                "apiGroups": [registration.group],
                "apiVersions": [registration.version],
                "operations": list(registration.operations),
                "resources": list(registration.resources),
                "scope": "*",
            }
        ],
    }
    if webhook.mutating:
        entry["reinvocationPolicy"] = "Never"
    if registration.account:
        expression = f"request.userInfo.username == 'system:serviceaccount:koordinator-system:{registration.account}'"
        entry["matchConditions"] = [{"name": registration.account, "expression": expression}]
    return entry


def render(
    template: list[dict[str, Any]],
    active: Iterable[Webhook],
    options: WebhookOptions,
    port: int,
    ca: bytes,
    current: Iterable[dict[str, Any]] = (),
) -> list[dict[str, Any]]:
    """The `webhooks` list of now: entries without an active handler dropped, the CA bundle and the way to us filled in.

    `current` is the list as the API server keeps it.
    """
    kept = {entry.get("name"): entry for entry in current}
    paths = {webhook.path for webhook in active}
    bundle = base64.b64encode(ca).decode()
    result = []
    for entry in template:
        client = dict(entry.get("clientConfig") or {})
        path = _path(client)
        if path not in paths:
            continue
        client["caBundle"] = bundle
        if options.host:
            client.pop("service", None)
            client["url"] = f"https://{options.host}:{port}{path}"
        else:
            client.pop("url", None)
            client["service"] = {**(client.get("service") or {}), "name": options.service, "namespace": options.namespace, "path": path}
        result.append({**_conditioned(entry, kept.get(entry.get("name")), options), "clientConfig": client, **_chosen(entry, options)})
    return result


def _conditioned(entry: dict[str, Any], kept: dict[str, Any] | None, options: WebhookOptions) -> dict[str, Any]:
    """Conditions with our namespace. Where they are not kept, everybody's requests come, and must not wait for us.

    An API server before 1.28 drops them, and somebody may have removed them: what drops them does so again, and what was
    removed is back, so that they are always asked for.
    """
    conditions = entry.get("matchConditions")
    if not conditions:
        return entry
    ours = [{**one, "expression": _NAMESPACE.sub(options.namespace, str(one.get("expression")))} for one in conditions]
    lost = kept is not None and not kept.get("matchConditions")
    return {**entry, "matchConditions": ours, **({"failurePolicy": "Ignore"} if lost else {})}


def _chosen(entry: dict[str, Any], options: WebhookOptions) -> dict[str, Any]:
    """What the environment says about an entry in place of what is registered."""
    chosen: dict[str, Any] = {"timeoutSeconds": options.timeout_seconds} if options.timeout_seconds else {}
    resources = {resource for rule in entry.get("rules") or () for resource in rule.get("resources") or ()}
    for name, policy in options.failure_policy:
        if not resources.isdisjoint(WEBHOOK_RESOURCES[name]):
            chosen["failurePolicy"] = policy
    return chosen


def _path(client: dict[str, Any]) -> str:
    service = client.get("service")
    if service:
        return str(service.get("path") or "/")
    url = str(client.get("url") or "")
    return "/" + url.split("://", 1)[-1].partition("/")[2]


def desired(
    current: dict[str, Any],
    mutating: bool,
    active: Collection[Webhook],
    options: WebhookOptions,
    port: int,
    ca: bytes,
    *,
    by_template: bool = True,
) -> dict[str, Any]:
    """The configuration as it should be: the template annotation, made the first time, with webhooks that are new in this version.

    With nothing `active` only what leads to us is taken out: another manager may serve the rest. Without `by_template` the annotation
    stays as it is, and the list that is in force takes its place.
    Raises ValueError for a broken template.
    """
    metadata = dict(current.get("metadata") or {})
    annotations = dict(metadata.get("annotations") or {})
    kept = current.get("webhooks") or []
    if by_template and annotations.get(TEMPLATE):
        kept = _template(annotations[TEMPLATE], metadata)
    # What an earlier version, or upstream's list, did not have yet; what the user changed in the others stays.
    unwanted = {name.strip() for name in annotations.get(REMOVED, "").split(",")}
    known = {entry.get("name") for entry in kept}
    defaults = {entry["name"]: entry for entry in default_entries(mutating)}
    template = [*(_with_conditions(entry, defaults.get(entry.get("name"))) for entry in kept)]
    template += [entry for name, entry in defaults.items() if name not in known | unwanted]
    if by_template:
        annotations[TEMPLATE] = orjson.dumps(template).decode()
        metadata["annotations"] = annotations
    present = current.get("webhooks") or []
    webhooks = render(template, active, options, port, ca, present) if active else [one for one in present if not _leads_here(one, options)]
    return {**current, "metadata": metadata, "webhooks": webhooks}


def _leads_here(entry: dict[str, Any], options: WebhookOptions) -> bool:
    """Whether an entry's reviews come to the Service, or the host, that this manager is asked at."""
    client = entry.get("clientConfig") or {}
    if service := client.get("service"):
        return (service.get("name"), service.get("namespace")) == (options.service, options.namespace)
    return bool(options.host) and str(client.get("url")).startswith(f"https://{options.host}:")


def _with_conditions(entry: dict[str, Any], default: dict[str, Any] | None) -> dict[str, Any]:
    """A template made of a list whose conditions were lost gets them back: the handler has nothing to say about other requests."""
    if default is None or "matchConditions" not in default or "matchConditions" in entry:
        return entry
    return {**entry, "matchConditions": default["matchConditions"]}


def _template(text: str, metadata: dict[str, Any]) -> list[dict[str, Any]]:
    try:
        msgspec.json.decode(text, type=list[_Shape])
    except msgspec.DecodeError as error:
        raise ValueError(f"annotation {TEMPLATE} of {metadata.get('name')} cannot be read: {error}") from None
    template: list[dict[str, Any]] = orjson.loads(text)
    return template


async def sync(
    client: Client, active: Collection[Webhook], options: WebhookOptions, port: int, ca: bytes, *, create: bool = True
) -> list[tuple[ObjectRef, str]]:
    """Write both configurations on difference, making a missing one if `create`. Those whose template cannot be used, and why.

    Neither waits for the other. Raises ApiError after both; the caller tries again.
    """
    mistakes: list[tuple[ObjectRef, str]] = []
    failures: list[ApiError] = []
    for kind, name, mutating in (
        (MUTATINGWEBHOOKCONFIGURATIONS, options.mutating_name, True),
        (VALIDATINGWEBHOOKCONFIGURATIONS, options.validating_name, False),
    ):
        fresh = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}}
        wanted = partial(desired, mutating=mutating, active=active, options=options, port=port, ca=ca)
        try:
            current = await _there(client, kind, name, wanted(fresh) if create else None)
            if current is not None and (mistake := await _mend(client, kind, current, wanted)):
                mistakes.append((reference(current, kind), mistake))
        except ApiError as error:
            failures.append(error)
    if failures:
        raise failures[0]
    return mistakes


async def _there(client: Client, kind: Kind, name: str, missing: dict[str, Any] | None) -> dict[str, Any] | None:
    """The configuration, made of `missing` where it is not there. Raises ApiError."""
    try:
        return await client.get(kind, name)
    except NotFound:
        if missing is None:
            return None
    try:
        return await client.create(kind, missing)
    except AlreadyExists:
        return await client.get(kind, name)


async def _mend(client: Client, kind: Kind, current: dict[str, Any], wanted: Callable[..., dict[str, Any]]) -> str:
    """Write a configuration on difference; what is wrong with its template, "" for nothing. Raises ApiError.

    Whoever edits a template by hand may err: what is registered then stays so, and goes on to get new certificates.
    """
    try:
        await _replace(client, kind, current, wanted(current))
        return ""
    except ValueError as error:
        mistake = str(error)
    except Invalid as error:
        mistake = f"annotation {TEMPLATE} of {current['metadata']['name']} is refused: {error}"
    await _replace(client, kind, current, wanted(current, by_template=False))
    return mistake


async def _replace(client: Client, kind: Kind, current: dict[str, Any], wanted: dict[str, Any]) -> None:
    if not json_equal(wanted, {"webhooks": [], **current}):  # an API server leaves out an empty list
        await client.replace(kind, wanted)
