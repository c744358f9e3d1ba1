"""Self-registration of the webhook configurations (MGR-WH-03): computed, then written on difference."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any

import orjson

from koord.api.kinds import MUTATINGWEBHOOKCONFIGURATIONS, VALIDATINGWEBHOOKCONFIGURATIONS
from koord.kube.client import Client
from koord.kube.errors import AlreadyExists, NotFound
from koord.kube.patch import json_equal
from roles.manager.options import WEBHOOK_RESOURCES, WebhookOptions
from roles.manager.webhooks.registry import WEBHOOKS, Registration, Webhook

TEMPLATE = "template"
"""Annotation that keeps the `webhooks` list as it was installed; every sync starts from it."""


REMOVED = "removed-webhooks"
"""Annotation with the names, separated by commas, of webhooks that the user does not want: they are not added to the template."""


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
    ours = [{**one, "expression": str(one.get("expression")).replace("koordinator-system", options.namespace)} for one in conditions]
    lost = kept is not None and not kept.get("matchConditions")
    return {**entry, "matchConditions": ours, **({"failurePolicy": "Ignore"} if lost else {})}


def _chosen(entry: dict[str, Any], options: WebhookOptions) -> dict[str, Any]:
    """What the environment says about an entry in place of what is registered."""
    chosen: dict[str, Any] = {"timeoutSeconds": options.timeout_seconds} if options.timeout_seconds else {}
    resources = {resource for rule in entry.get("rules") or () for resource in rule.get("resources") or ()}
    for name, policy in options.failure_policy:
        if WEBHOOK_RESOURCES[name] in resources:
            chosen["failurePolicy"] = policy
    return chosen


def _path(client: dict[str, Any]) -> str:
    service = client.get("service")
    if service:
        return str(service.get("path") or "/")
    url = str(client.get("url") or "")
    return "/" + url.split("://", 1)[-1].partition("/")[2]


def desired(
    current: dict[str, Any], mutating: bool, active: Iterable[Webhook], options: WebhookOptions, port: int, ca: bytes
) -> dict[str, Any]:
    """The configuration as it should be: the template annotation, made the first time, with webhooks that are new in this version.

    Raises ValueError for a broken template.
    """
    metadata = dict(current.get("metadata") or {})
    annotations = dict(metadata.get("annotations") or {})
    kept = _template(annotations[TEMPLATE], metadata) if annotations.get(TEMPLATE) else current.get("webhooks") or []
    # What an earlier version, or upstream's list, did not have yet; what the user changed in the others stays.
    unwanted = {name.strip() for name in annotations.get(REMOVED, "").split(",")}
    present = {entry.get("name") for entry in kept}
    defaults = {entry["name"]: entry for entry in default_entries(mutating)}
    template = [*(_with_conditions(entry, defaults.get(entry.get("name"))) for entry in kept)]
    template += [entry for name, entry in defaults.items() if name not in present | unwanted]
    annotations[TEMPLATE] = orjson.dumps(template).decode()
    metadata["annotations"] = annotations
    webhooks = render(template, active, options, port, ca, current.get("webhooks") or ())
    return {**current, "metadata": metadata, "webhooks": webhooks}


def _with_conditions(entry: dict[str, Any], default: dict[str, Any] | None) -> dict[str, Any]:
    """A template made of a list whose conditions were lost gets them back: the handler has nothing to say about other requests."""
    if default is None or "matchConditions" not in default or "matchConditions" in entry:
        return entry
    return {**entry, "matchConditions": default["matchConditions"]}


def _template(text: str, metadata: dict[str, Any]) -> list[dict[str, Any]]:
    try:
        template = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"annotation {TEMPLATE} of {metadata.get('name')} is not valid JSON: {error}") from None
    if not isinstance(template, list) or not all(isinstance(entry, dict) for entry in template):
        raise ValueError(f"annotation {TEMPLATE} of {metadata.get('name')} must be a list of webhooks")
    return template


async def sync(client: Client, active: Iterable[Webhook], options: WebhookOptions, port: int, ca: bytes) -> None:
    """Write both configurations on difference, making a missing one. Raises ApiError or ValueError; the caller tries again."""
    for kind, name, mutating in (
        (MUTATINGWEBHOOKCONFIGURATIONS, options.mutating_name, True),
        (VALIDATINGWEBHOOKCONFIGURATIONS, options.validating_name, False),
    ):
        try:
            current = await client.get(kind, name)
        except NotFound:
            fresh = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}}
            try:
                await client.create(kind, desired(fresh, mutating, active, options, port, ca))
                continue
            except AlreadyExists:
                current = await client.get(kind, name)
        wanted = desired(current, mutating, active, options, port, ca)
        if not json_equal(wanted, current):
            await client.replace(kind, wanted)
