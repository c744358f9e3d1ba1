"""Requests on resources: from HTTP to the REST functions and back."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import web

from koord.apiserver import errors
from koord.apiserver.errors import StatusError
from koord.apiserver.resources import CREATE_ONLY
from koord.apiserver.rest import delete as deletion
from koord.apiserver.rest import patch as patching
from koord.apiserver.rest import read, subresources, write
from koord.apiserver.rest.context import DeleteOptions, Options, flag
from koord.apiserver.store import Entry, Obj
from koord.apiserver.turns import Turn
from koord.apiserver.watch import WatchStreams
from koord.apiserver.web import logs, render
from koord.apiserver.web.render import JSON, Shape, shape, warn

if TYPE_CHECKING:
    from koord.apiserver.core import Core
    from koord.apiserver.resources import Resource


_PROTOBUF = "application/vnd.kubernetes.protobuf"
_YAML = ("application/yaml", "application/x-yaml", "text/yaml")
_VALIDATIONS = ("", "Ignore", "Strict", "Warn")
_KINDS = {"POST": "CreateOptions", "PUT": "UpdateOptions", "PATCH": "PatchOptions", "DELETE": "DeleteOptions"}
_MANAGER_LIMIT = 128
_OPTIONS = ("dryRun", "fieldManager", "fieldValidation")


@dataclass(slots=True)
class Target:
    """A resource path. `namespace` is None for all namespaces and for cluster-scoped resources."""

    resource: Resource
    namespace: str | None
    name: str = ""
    subresource: str = ""

    @property
    def place(self) -> str:
        """The namespace as the store spells it."""
        return self.namespace or ""


def read_options(query: dict[str, str], options: Options, method: str) -> None:
    """The options of writes. Raises 422 for values that mean nothing."""
    if not query:
        return
    causes = []
    dry = query.get("dryRun")
    if dry is not None:
        if dry != "All":
            causes.append(errors.not_supported("dryRun", [dry], ("All",)))
        options.dry_run = True
    validation = query.get("fieldValidation", "")
    if validation not in _VALIDATIONS:
        causes.append(errors.not_supported("fieldValidation", validation, _VALIDATIONS))
    manager = query.get("fieldManager", "")
    if len(manager.encode()) > _MANAGER_LIMIT:
        causes.append(errors.too_long("fieldManager", _MANAGER_LIMIT))
    odd = next(((at, c) for at, c in enumerate(manager) if not c.isprintable()), None)
    if odd is not None:
        causes.append(errors.invalid_value("fieldManager", manager, f"invalid character U+{ord(odd[1]):04X} (at position {odd[0]})"))
    if causes:
        raise errors.invalid(_KINDS.get(method, "PatchOptions"), "meta.k8s.io", "", causes)
    options.wire = {key: [value] if key == "dryRun" else value for key in _OPTIONS if (value := query.get(key))}
    options.field_validation = validation or options.field_validation
    options.field_manager = manager
    options.force = flag(query, "force") if "force" in query else None


async def body_object(request: web.BaseRequest, options: Options) -> Obj:
    """The object in a request body: JSON or YAML."""
    body = await request.read()
    kind = request.content_type if "Content-Type" in request.headers else JSON
    if kind in _YAML:
        found = await patching.parse_any_yaml(body)
    elif kind in (JSON, "application/octet-stream"):
        try:
            found = orjson.loads(body)
        except orjson.JSONDecodeError as err:
            raise errors.bad_request(f"the object provided is unrecognized (must be of type JSON): {err}") from err
        if options.field_validation != "Ignore":
            options.twice = _duplicates(found, body)
    elif kind == _PROTOBUF:
        from koord.apiserver.protobuf.decode import ProtobufError, decode

        try:
            found = decode(body)
        except ProtobufError as err:
            raise errors.bad_request(f"the object provided is unrecognized (protobuf): {err}") from err
    else:
        raise errors.unsupported_media_type((JSON, "application/yaml", _PROTOBUF))
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise errors.bad_request("the object provided is unrecognized (must be a JSON object)")
    return found


class _Pairs(dict[str, Any]):
    """An object of a JSON text, and the keys that it has more than once."""

    def __init__(self, items: list[tuple[str, Any]]) -> None:
        super().__init__(items)
        self.twice: list[str] = []
        if len(self) < len(items):
            self.twice = [key for key, times in Counter(key for key, _ in items).items() if times > 1]


def _duplicates(found: Any, body: bytes) -> list[str]:
    """The fields of a JSON text that come more than once, with their paths; `found` is what it says."""
    import json

    twice: list[str] = []

    def walk(value: Any, path: str) -> None:
        if isinstance(value, list):
            for at, item in enumerate(value):
                walk(item, f"{path}[{at}]")
        elif isinstance(value, _Pairs):
            for key, inner in value.items():
                walk(inner, f"{path}.{key}" if path else key)
            twice.extend(f"{path}.{key}" if path else key for key in value.twice)

    with contextlib.suppress(RecursionError, TypeError):  # what is nested that deeply is not looked at
        if orjson.dumps(found) != body.rstrip():  # most come in the shortest form, and lose nothing
            walk(json.loads(body, object_pairs_hook=_Pairs), "")
    return twice


@dataclass(slots=True)
class Call:
    """One request on a resource."""

    request: web.BaseRequest
    target: Target
    query: dict[str, str]
    options: Options

    @property
    def shape(self) -> Shape:
        """What the answer is to look like."""
        return shape(self.request.headers.get("Accept", ""))


Answer = Awaitable[web.StreamResponse]
_PARTS = ("status", "resize", "ephemeralcontainers")


class ObjectHandlers:
    """The verbs on resources and subresources."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.watches = WatchStreams(core)

    async def dispatch(self, call: Call) -> web.StreamResponse:
        """Answer a request on a resource."""
        target, method = call.target, call.request.method.replace("HEAD", "GET")
        resource, place = target.resource, target.subresource
        if place and place not in resource.subresources:
            raise errors.path_not_found()
        if place in _PARTS:
            place = "part"
        elif not place:
            place = "one" if target.name else "review" if resource.verbs == CREATE_ONLY else "all"
        handler = _HANDLERS.get((place, method))
        if handler is None:
            raise errors.method_not_allowed()
        # who cannot read the answer changes nothing; logs are text, and events have a shape of their own
        watched = (place, method) == ("all", "GET") and flag(call.query, "watch")
        shown = render.PLAIN if watched or place == "log" else call.shape
        if method != "GET":
            read_options(call.query, call.options, method)
        if deprecation := resource.deprecation:
            call.options.warnings.append(deprecation)
        response = await handler(self, call)
        if deprecation and not response.prepared and "Warning" not in response.headers:
            warn(response, call.options.warnings)
        return await render.in_yaml(response) if shown.yaml and isinstance(response, web.Response) else response

    def _one(self, call: Call, entry: Entry, status: int = 200) -> web.Response:
        response = render.one(call.target.resource, entry, call.shape, status, call.query)
        if call.options.warnings:
            warn(response, call.options.warnings)
        return response

    # -- reads -------------------------------------------------------------------------------------------------------------------

    async def _get(self, call: Call) -> web.StreamResponse:
        version, current = read.checked_version(call.query), self.core.store.rv
        if version > current:
            raise errors.too_large_resource_version(version, current)
        return self._one(call, self.core.entry(call.target.resource, call.target.place, call.target.name))

    async def _list(self, call: Call) -> web.StreamResponse:
        resource = call.target.resource
        parsed = read.parse_query(resource, call.target.namespace, call.query)
        if flag(call.query, "watch"):
            wanted = shape(call.request.headers.get("Accept", ""), stream=True)
            return await self.watches.serve(call.request, resource, parsed, wanted, call.query)
        return render.page(resource, read.list_page(self.core, resource, parsed), call.shape, call.query)

    # -- writes ------------------------------------------------------------------------------------------------------------------

    async def _review(self, call: Call) -> web.StreamResponse:
        obj = await body_object(call.request, call.options)
        return render.plain(await subresources.review(self.core, call.target.resource, call.target.place, obj, call.options), 201)

    async def _create(self, call: Call) -> web.StreamResponse:
        resource, namespace = call.target.resource, call.target.namespace
        obj = await body_object(call.request, call.options)
        if resource.namespaced and namespace is None:
            meta = obj.get("metadata")
            namespace = meta.get("namespace") if isinstance(meta, dict) else None
            if not namespace:
                raise errors.method_not_allowed()
        await self.core.admission.quotas.counted(resource, namespace or "")
        return self._one(call, await write.create(self.core, resource, namespace or "", obj, call.options), 201)

    async def _put(self, call: Call) -> web.StreamResponse:
        target, obj = call.target, await body_object(call.request, call.options)
        await self.core.admission.quotas.counted(target.resource, target.place, target.subresource)
        entry, created = await write.replace(self.core, target.resource, target.place, target.name, obj, call.options, target.subresource)
        return self._one(call, entry, 201 if created else 200)

    async def _patch(self, call: Call) -> web.StreamResponse:
        target, kind = call.target, call.request.content_type
        body = await call.request.read()
        patch = await patching.parse(target.resource, kind, body)
        if kind in (patching.MERGE_PATCH, patching.STRATEGIC_PATCH) and call.options.field_validation != "Ignore":
            call.options.twice = _duplicates(patch, body)
        if call.options.force is not None and kind != patching.APPLY_PATCH:
            cause = errors.field_forbidden("force", "may not be specified for non-apply patch")
            raise errors.invalid("PatchOptions", "meta.k8s.io", "", [cause])
        await self.core.admission.quotas.counted(target.resource, target.place, target.subresource)
        entry, created = await patching.patch_object(
            self.core, target.resource, target.place, target.name, kind, patch, call.options, target.subresource
        )
        return self._one(call, entry, 201 if created else 200)

    async def _delete(self, call: Call) -> web.StreamResponse:
        resource, wanted = call.target.resource, await self._delete_options(call)
        entry, gone = await deletion.delete(self.core, resource, call.target.place, call.target.name, call.options, wanted)
        if not gone or resource.returns_deleted:
            return self._one(call, entry)
        details: Obj = {"name": entry.name, "kind": resource.plural, "uid": entry.obj["metadata"]["uid"]}
        if resource.group:
            details["group"] = resource.group
        return render.plain({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}, 200)

    async def _delete_options(self, call: Call) -> DeleteOptions:
        body = await body_object(call.request, call.options) if await call.request.read() else None
        wanted = deletion.parse_options(body, call.query)
        call.options.dry_run = call.options.dry_run or wanted.dry_run
        return wanted

    async def _delete_collection(self, call: Call) -> web.StreamResponse:
        resource, namespace = call.target.resource, call.target.namespace
        if (resource.namespaced and namespace is None) or "deletecollection" not in resource.verbs:
            raise errors.method_not_allowed()
        wanted = await self._delete_options(call)
        page = read.list_page(self.core, resource, read.parse_query(resource, namespace, call.query))
        turn = Turn()
        for entry in page.entries:  # the answer shows them as they were found
            try:
                await deletion.delete(self.core, resource, entry.namespace, entry.name, call.options, wanted)
            except StatusError as err:
                if err.code != 404:
                    raise
            await turn.give_way()
        return render.page(resource, page, call.shape, call.query)

    # -- subresources ------------------------------------------------------------------------------------------------------------

    async def _logs(self, call: Call) -> web.StreamResponse:
        target = call.target
        return await logs.serve(self.core, call.request, target.resource, (target.place, target.name), call.query)

    async def _post(self, call: Call) -> web.StreamResponse:
        """A binding, an eviction or a token."""
        target, obj = call.target, await body_object(call.request, call.options)
        act = _CREATING[target.subresource]
        return render.plain(await act(self.core, target.place, target.name, obj, call.options), 201)

    async def _scale(self, call: Call) -> web.StreamResponse:
        resource, request = call.target.resource, call.request
        entry = self.core.entry(resource, call.target.place, call.target.name)
        if request.method in ("GET", "HEAD"):
            return render.plain(subresources.scale_of(resource, entry.obj), 200)
        applied = request.method == "PATCH" and request.content_type == patching.APPLY_PATCH
        if request.method == "PUT":
            body = await body_object(request, call.options)
        else:
            body = await patching.parse(resource, request.content_type, await request.read())

        def change(present: dict[str, Any]) -> dict[str, Any]:
            # an applied Scale is taken as it is: it says all that its manager wants
            if applied or request.method == "PUT":
                return deepcopy(body)
            return patching.apply(resource, present, request.content_type, body)

        return render.plain(await subresources.write_scale(self.core, resource, entry, change, call.options, applied=applied), 200)


_CREATING = {"binding": subresources.bind, "eviction": subresources.evict, "token": subresources.token}
# (what the path names, method) -> who answers
_HANDLERS: dict[tuple[str, str], Callable[[ObjectHandlers, Call], Answer]] = {
    ("all", "GET"): ObjectHandlers._list,
    ("all", "POST"): ObjectHandlers._create,
    ("all", "DELETE"): ObjectHandlers._delete_collection,
    ("review", "POST"): ObjectHandlers._review,
    ("one", "GET"): ObjectHandlers._get,
    ("one", "PUT"): ObjectHandlers._put,
    ("one", "PATCH"): ObjectHandlers._patch,
    ("one", "DELETE"): ObjectHandlers._delete,
    ("part", "GET"): ObjectHandlers._get,
    ("part", "PUT"): ObjectHandlers._put,
    ("part", "PATCH"): ObjectHandlers._patch,
    ("log", "GET"): ObjectHandlers._logs,
    ("finalize", "PUT"): ObjectHandlers._put,
    **{("scale", method): ObjectHandlers._scale for method in ("GET", "PUT", "PATCH")},
    **{(part, "POST"): ObjectHandlers._post for part in _CREATING},
}
