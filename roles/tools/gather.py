"""What `koord why` looks at: decision records of the roles and the live object. All of its I/O."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import orjson

from koord.api.kinds import BY_KIND, ELASTICQUOTAS, EVENTS, NODES, PODS
from koord.api.names import LABEL_QUOTA_NAME, QUOTA_DEFAULT
from koord.config.urls import is_http_url
from koord.decisions.record import Record, decode_many, encode
from koord.decisions.sinks import log_files, read_records
from koord.kube import config, errors
from koord.kube.client import PATIENCE, Client
from koord.process.errors import UsageError
from roles.tools import quota, reach
from roles.tools.facts import Gathered, Live, event_time, gang_of, uids_of
from roles.tools.place import SYSTEM_NAMESPACE
from roles.tools.reach import Endpoint

Obj = dict[str, Any]
TIMEOUT = 5.0  # seconds that a role may take to answer
MAX_NODES = 2000  # beyond that the nearest node is not looked for: the scheduler's own reasons must do


def parse_endpoint(text: str) -> Endpoint:
    """`http://host:port`, `host:port`, or either with `role=` in front. Raises ConfigurationError."""
    role, equals, url = text.partition("=")
    if not equals or "/" in role or ":" in role:
        role, url = "", text
    url = url if "://" in url else f"http://{url}"
    if not is_http_url(url):
        raise UsageError(f"endpoint {text!r} must be http://host:port, optionally with role= in front")
    return Endpoint(url.rstrip("/"), role)


def sandbox_directory(environ: Mapping[str, str]) -> Path:
    """Where a running sandbox says how it is reached."""
    runtime = environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "koord-sandbox" if runtime else Path(f"/tmp/koord-sandbox-{os.getuid()}")


def _trusted(directory: Path) -> bool:
    """Only what the same user wrote may say whom we talk to: anybody can make a directory in /tmp."""
    try:
        facts = os.lstat(directory)
    except OSError:
        return False
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid()


def find_endpoints(given: Sequence[str], environ: Mapping[str, str], server: config.ClientConfig | None = None) -> list[Endpoint]:
    """The endpoints given, else those of KOORD_ENDPOINTS (comma-separated), else those of a running sandbox.

    A sandbox's roles are asked only if `server` is its API server too: records and object come from one cluster.
    """
    if given:
        return [parse_endpoint(text) for text in given]
    named = [text.strip() for text in environ.get("KOORD_ENDPOINTS", "").split(",") if text.strip()]
    if named:
        return [parse_endpoint(text) for text in named]
    directory = sandbox_directory(environ)
    if not _trusted(directory):
        return []
    # Beside the sandbox that is found first others may run, each with a directory of its own.
    found = next((one for one in (directory, *sorted(directory.glob("run-*/"))) if _is_sandbox(one, server)), None)
    if found is None:
        return []
    try:
        published = orjson.loads((found / "endpoints.json").read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return []
    if not isinstance(published, dict):
        return []
    return [
        Endpoint(url.rstrip("/"), role)
        for role, url in published.items()
        if isinstance(url, str) and url.startswith(("http://", "https://"))
    ]


def _is_sandbox(directory: Path, server: config.ClientConfig | None) -> bool:
    if server is None:
        return True
    try:
        return config.load(str(directory / "kubeconfig")).server == server.server
    except config.KubeConfigError:
        return False


def find_server(given: str | None, context: str | None, environ: Mapping[str, str]) -> config.ClientConfig:
    """The API server to ask: of the kubeconfig that is given, KUBECONFIG's, a running sandbox's, the pod's own, that of `~/.kube/config`.

    Raises KubeConfigError; NotConfigured where there is none.
    """
    directory = sandbox_directory(environ)
    if not given and not environ.get("KUBECONFIG") and _trusted(directory) and (directory / "kubeconfig").is_file():
        given = str(directory / "kubeconfig")
    return config.load(given, context=context, environ=environ)


async def gather(
    kind: str,
    namespace: str,
    name: str,
    endpoints: Sequence[Endpoint],
    server: config.ClientConfig | None,
    logs: Sequence[str] = (),
    system: str = SYSTEM_NAMESPACE,
) -> Gathered:
    """Ask every endpoint and, if there is a `server`, the API server; without endpoints, the roles that are found in its cluster.

    `logs` are directories of decision logs; `system` is where koord lives. A namespace "" means any.
    """
    found = Gathered()
    for directory in logs:
        _read(directory, kind, namespace, name, found)
    if server is None:
        await _ask_all(endpoints, kind, namespace, name, found)
    else:
        await _ask_server(server, kind, namespace, name, endpoints, system, found)
    # A role that is running and keeps a log tells the same record twice.
    found.records = [*{encode(record): record for record in sorted(found.records, key=lambda record: record.time)}.values()]
    return found


async def _ask_server(
    server: config.ClientConfig, kind: str, namespace: str, name: str, endpoints: Sequence[Endpoint], system: str, found: Gathered
) -> None:
    async with Client(server, role="why", patience=PATIENCE) as client:
        try:
            async with asyncio.timeout(6 * TIMEOUT):
                await _gather(client, kind, namespace, name, endpoints, system, found)
        except (errors.ApiError, TimeoutError) as error:
            why = str(error) or "no answer in time"
            found.problems.append(f"API server {why}" if why.startswith(server.server) else f"API server {server.server}: {why}")
            if not found.asked:
                await _ask_all(endpoints, kind, namespace, name, found)


async def _gather(
    client: Client, kind: str, namespace: str, name: str, endpoints: Sequence[Endpoint], system: str, found: Gathered
) -> None:
    """The roles first where they are known, since they know the namespace; else the object, since it names the node. Raises ApiError."""
    if endpoints:
        await _ask_all(endpoints, kind, namespace, name, found)
    if found.records:
        namespaces = {record.subject.namespace for record in found.records if record.subject.kind == kind}
        namespace = namespace or (namespaces.pop() if len(namespaces) == 1 else "")
    if kind != "Node" and not namespace:
        namespace = await _namespace_of(client, kind, name, found)
    if namespace or kind == "Node":
        try:
            found.live = await _live(client, kind, namespace, name)
        except errors.Forbidden as error:  # the roles may tell it all the same
            found.problems.append(str(error))
    obj = found.obj
    if namespace and not obj and not found.records:  # it may be meant in another one
        places = [place for place in await _places_of(client, kind, name) if place != namespace]
        found.elsewhere = places
    if not endpoints:
        node = name if kind == "Node" else str((obj.get("spec") or {}).get("nodeName") or "")
        endpoints, problems = await reach.find(client, node, system)
        found.problems += problems
        await _ask_all(endpoints, kind, namespace, name, found)
    if kind == "Pod" and (uids := uids_of(obj)):
        await asyncio.gather(*(_ask_files(endpoint, uids, found) for endpoint in endpoints))


async def _namespace_of(client: Client, kind: str, name: str, found: Gathered) -> str:
    """The namespace of the only object of this name; "default" if there are several of which one is there."""
    places = await _places_of(client, kind, name)
    found.places = places
    return places[0] if len(places) == 1 else ("default" if not places else "")


async def _places_of(client: Client, kind: str, name: str) -> list[str]:
    """The namespaces that have an object of this name, as far as this user may look."""
    try:
        objects = (await client.list(BY_KIND[kind], field_selector=f"metadata.name={name}")).items
    except (errors.Forbidden, errors.NotFound):  # one namespace is what this user may look at, or the kind is not served
        return []
    return sorted(obj["metadata"]["namespace"] for obj in objects)


async def _ask_all(endpoints: Sequence[Endpoint], kind: str, namespace: str, name: str, found: Gathered) -> None:
    await asyncio.gather(*(_ask(endpoint, kind, namespace, name, found) for endpoint in endpoints))


def _read(directory: str, kind: str, namespace: str, name: str, found: Gathered) -> None:
    """The records of a decision log that are about this object. A file that cannot be read hides no other."""
    before = len(found.records)
    try:
        paths = log_files(directory)
    except OSError as error:
        found.problems.append(f"decision log {directory}: {error}")
        return
    for path in paths:
        try:
            for record in read_records(path):
                about = record.subject
                if about.kind == kind and about.name == name and namespace in ("", about.namespace):
                    found.records.append(record)
        except (OSError, EOFError, ValueError) as error:
            found.problems.append(f"decision log {directory}: {error}")
    found.answered += len(found.records) > before


async def fetch(endpoint: Endpoint, query: dict[str, str]) -> list[Record]:
    """The records of a role that match the query. Raises ApiError, TimeoutError or msgspec.DecodeError."""
    async with Client(endpoint.connection(), role="why", patience=PATIENCE) as client:
        async with asyncio.timeout(TIMEOUT):
            path = f"{endpoint.prefix}/debug/decisions"
            response = await client.transport.request("GET", path, params=query, timeout=TIMEOUT)
    if response.status == 404:
        return []  # a role that records no decisions
    if response.status != 200:
        raise errors.from_response(response.status, response.body)
    return decode_many(response.body)


async def _ask(endpoint: Endpoint, kind: str, namespace: str, name: str, found: Gathered) -> None:
    query = {"kind": kind, "name": name}
    if namespace:
        query["namespace"] = namespace
    found.asked.append(str(endpoint))
    try:
        found.records += await fetch(endpoint, query)
        found.answered += 1
    except (errors.ApiError, TimeoutError, msgspec.DecodeError) as error:
        found.problems.append(f"{endpoint}: {str(error) or 'no answer in time'}")


async def _ask_files(endpoint: Endpoint, uids: Iterable[str], found: Gathered) -> None:
    """What the node agent wrote into the pod's control groups, which are named after the uid by which the kubelet knows it."""
    try:
        records = await fetch(endpoint, {"kind": "CgroupFile"})
    except (errors.ApiError, TimeoutError, msgspec.DecodeError):
        return  # the first question to this endpoint said what is wrong with it
    names = {name for uid in uids for name in (uid, uid.replace("-", "_"))}
    found.records += [record for record in records if any(part in record.subject.name for part in names)]


async def _live(client: Client, kind: str, namespace: str, name: str) -> Live:
    """The object and what belongs to it. Raises Forbidden where it cannot be told without."""
    live = Live()
    try:
        live.obj = await client.get(BY_KIND[kind], name, namespace or None)
    except errors.NotFound:
        return live
    await _BESIDE[kind](client, namespace, live.obj, live)
    return live


async def _beside_quota(client: Client, namespace: str, obj: Obj, live: Live) -> None:
    with contextlib.suppress(errors.Forbidden):
        live.events = await _events(client, namespace, obj)
        name = obj["metadata"]["name"]
        live.pods = (await client.list(PODS, label_selector=f"{LABEL_QUOTA_NAME}={name}")).items
        quotas = (await client.list(ELASTICQUOTAS)).items
        for place in [None] if name == QUOTA_DEFAULT else quota.places_of(name, quotas):
            others = await client.list(PODS, place, label_selector=f"!{LABEL_QUOTA_NAME}")
            live.pods += quota.members(name, others.items, quotas)


async def _beside_group(client: Client, namespace: str, obj: Obj, live: Live) -> None:
    live.events = await _events(client, namespace, obj)
    name = obj["metadata"]["name"]
    live.pods = [pod for pod in (await client.list(PODS, namespace)).items if gang_of(pod) == name]


async def _beside_pod(client: Client, namespace: str, obj: Obj, live: Live) -> None:
    with contextlib.suppress(errors.Forbidden):  # who may look at one namespace is told what can be told without
        live.events = await _events(client, namespace, obj)
    ended = (obj.get("status") or {}).get("phase") in ("Succeeded", "Failed")
    if not ended and not (obj.get("spec") or {}).get("nodeName"):
        with contextlib.suppress(errors.Forbidden):
            nodes = await client.list(NODES)
            if len(nodes.items) <= MAX_NODES:
                live.pods = (await client.list(PODS, field_selector="spec.nodeName!=")).items
                live.nodes = nodes.items


async def _beside_node(client: Client, namespace: str, obj: Obj, live: Live) -> None:
    live.events = await _events(client, "default", obj)
    live.pods = (await client.list(PODS, field_selector=f"spec.nodeName={obj['metadata']['name']}")).items


_BESIDE = {"Pod": _beside_pod, "PodGroup": _beside_group, "Node": _beside_node, "ElasticQuota": _beside_quota}


async def _events(client: Client, namespace: str, obj: Obj) -> list[Obj]:
    """Events about an object, oldest first. Filtered here: servers differ in which fields of an event can be selected."""
    named, uids = (obj.get("kind"), (obj.get("metadata") or {}).get("name")), {"", *uids_of(obj)}
    result = []
    for event in (await client.list(EVENTS, namespace)).items:
        about = event.get("regarding") or {}
        if (about.get("kind"), about.get("name")) == named and about.get("uid", "") in uids:
            result.append(event)
    return sorted(result, key=event_time)
