"""Requests on resources: from HTTP to the REST functions and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import web

from koord.apiserver.errors import (
    Cause,
    StatusError,
    bad_request,
    field_forbidden,
    invalid,
    method_not_allowed,
    not_supported,
    path_not_found,
    unsupported_media_type,
)
from koord.apiserver.rest import delete as deletion
from koord.apiserver.rest import patch as patching
from koord.apiserver.rest import read, subresources, write
from koord.apiserver.rest.context import DeleteOptions, Options, flag
from koord.apiserver.store import Entry, Obj
from koord.apiserver.watch import WatchStreams
from koord.apiserver.web import logs, reviews
from koord.apiserver.web.render import JSON, Renderer, shape, warn
from koord.apiserver.wire import obj_of

if TYPE_CHECKING:
    from koord.apiserver.core import Core
    from koord.apiserver.resources import Resource
    from koord.apiserver.web.handler import Target


_PROTOBUF = "application/vnd.kubernetes.protobuf"
_YAML = ("application/yaml", "application/x-yaml", "text/yaml")
_VALIDATIONS = ("", "Ignore", "Strict", "Warn")
_KINDS = {"POST": "CreateOptions", "PUT": "UpdateOptions", "PATCH": "PatchOptions", "DELETE": "DeleteOptions"}
_MANAGER_LIMIT = 128


def read_options(query: dict[str, str], options: Options, method: str) -> None:
    """The options of writes. Raises 422 for values that mean nothing."""
    if not query:
        return
    causes = []
    dry = query.get("dryRun")
    if dry is not None:
        if dry != "All":
            causes.append(not_supported("dryRun", [dry], ("All",)))
        options.dry_run = True
    validation = query.get("fieldValidation", "")
    if validation not in _VALIDATIONS:
        causes.append(not_supported("fieldValidation", validation, _VALIDATIONS))
    manager = query.get("fieldManager", "")
    if len(manager.encode()) > _MANAGER_LIMIT:
        causes.append(Cause("FieldValueTooLong", "fieldManager", f"Too long: may not be more than {_MANAGER_LIMIT} bytes"))
    if causes:
        raise invalid(_KINDS.get(method, "PatchOptions"), "meta.k8s.io", "", causes)
    options.field_validation = validation or options.field_validation
    options.field_manager = manager
    options.force = flag(query, "force") if "force" in query else None


async def body_object(request: web.BaseRequest, options: Options) -> Obj:
    """The object in a request body: JSON or YAML."""
    body = await request.read()
    kind = request.content_type if "Content-Type" in request.headers else JSON
    if kind in _YAML:
        import yaml

        try:
            loaded = yaml.load(body, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
            found = orjson.loads(orjson.dumps(loaded, default=str, option=orjson.OPT_NON_STR_KEYS))
        except yaml.YAMLError as err:
            raise bad_request(f"error parsing YAML: {err}") from err
    elif kind in (JSON, "application/octet-stream"):
        try:
            found = orjson.loads(body)
        except orjson.JSONDecodeError as err:
            raise bad_request(f"the object provided is unrecognized (must be of type JSON): {err}") from err
        if options.field_validation == "Strict":
            _refuse_duplicates(body)
    elif kind == _PROTOBUF:
        from koord.apiserver.protobuf.decode import ProtobufError, decode

        try:
            found = decode(body)
        except ProtobufError as err:
            raise bad_request(f"the object provided is unrecognized (protobuf): {err}") from err
    else:
        raise unsupported_media_type((JSON, "application/yaml", _PROTOBUF))
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise bad_request("the object provided is unrecognized (must be a JSON object)")
    return found


def _refuse_duplicates(body: bytes) -> None:
    import json

    twice: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> Obj:
        out: Obj = {}
        for key, value in items:
            if key in out:
                twice.append(key)
            out[key] = value
        return out

    json.loads(body, object_pairs_hook=pairs)
    if twice:
        raise bad_request("strict decoding error: " + ", ".join(f'duplicate field "{k}"' for k in twice))


class ObjectHandlers:
    """The verbs on resources and subresources."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.render = Renderer(core)
        self.watches = WatchStreams(core, self.render)

    async def dispatch(self, request: web.BaseRequest, target: Target, query: dict[str, str], options: Options) -> web.StreamResponse:
        """Answer a request on a resource."""
        method = request.method
        resource = target.resource
        if target.subresource:
            return await self._subresource(request, target, query, options)
        if target.name:
            if method in ("GET", "HEAD"):
                return self._one(request, resource, self.core.entry(resource, target.place, target.name))
            read_options(query, options, method)
            if method == "PUT":
                return await self._put(request, target, options)
            if method == "PATCH":
                return await self._patch(request, target, options)
            if method == "DELETE":
                return await self._delete(request, target, query, options)
            raise method_not_allowed()
        if method == "POST":
            return await self._create(request, target, query, options)
        if resource.verbs == ("create",):
            raise method_not_allowed()
        if method in ("GET", "HEAD"):
            return await self._list(request, target, query)
        if method == "DELETE":
            return await self._delete_collection(request, target, query, options)
        raise method_not_allowed()

    # -- answers -----------------------------------------------------------------------------------------------------------------

    def _one(
        self, request: web.BaseRequest, resource: Resource, entry: Entry, status: int = 200, options: Options | None = None
    ) -> web.Response:
        wanted = shape(request.headers.get("Accept", ""))
        response = self.render.one(resource, entry, wanted, status)
        if options is not None and options.warnings:
            warn(response, options.warnings)
        return response

    # -- reads -------------------------------------------------------------------------------------------------------------------

    async def _list(self, request: web.BaseRequest, target: Target, query: dict[str, str]) -> web.StreamResponse:
        parsed = read.parse_query(target.resource, target.namespace, query)
        wanted = shape(request.headers.get("Accept", ""))
        if flag(query, "watch"):
            return await self.watches.serve(request, target.resource, parsed, wanted)
        page = read.list_page(self.core, target.resource, parsed)
        return self.render.page(target.resource, page, wanted, query)

    # -- writes ------------------------------------------------------------------------------------------------------------------

    async def _create(self, request: web.BaseRequest, target: Target, query: dict[str, str], options: Options) -> web.StreamResponse:
        resource = target.resource
        read_options(query, options, request.method)
        obj = await body_object(request, options)
        if resource.verbs == ("create",):
            return self.render.plain(await reviews.answer(self.core, target, obj, options), 201)
        namespace = target.namespace
        if resource.namespaced and namespace is None:
            meta = obj.get("metadata")
            namespace = meta.get("namespace") if isinstance(meta, dict) else None
            if not namespace:
                raise method_not_allowed()
        entry = await write.create(self.core, resource, namespace or "", obj, options)
        return self._one(request, resource, entry, 201, options)

    async def _put(self, request: web.BaseRequest, target: Target, options: Options) -> web.StreamResponse:
        obj = await body_object(request, options)
        entry, created = await write.replace(self.core, target.resource, target.place, target.name, obj, options, target.subresource)
        return self._one(request, target.resource, entry, 201 if created else 200, options)

    async def _patch(self, request: web.BaseRequest, target: Target, options: Options) -> web.StreamResponse:
        content_type = request.content_type
        patch = patching.parse(target.resource, content_type, await request.read())
        if options.force is not None and content_type != patching.APPLY_PATCH:
            raise invalid("PatchOptions", "meta.k8s.io", "", [field_forbidden("force", "may not be specified for non-apply patch")])
        entry, created = await patching.patch_object(
            self.core, target.resource, target.place, target.name, content_type, patch, options, target.subresource
        )
        return self._one(request, target.resource, entry, 201 if created else 200, options)

    async def _delete(self, request: web.BaseRequest, target: Target, query: dict[str, str], options: Options) -> web.StreamResponse:
        wanted = await self._delete_options(request, query, options)
        resource = target.resource
        entry, gone = await deletion.delete(self.core, resource, target.place, target.name, options, wanted)
        if gone and not resource.returns_deleted:
            details: Obj = {"name": entry.name, "kind": resource.plural, "uid": entry.obj["metadata"]["uid"]}
            if resource.group:
                details["group"] = resource.group
            return self.render.plain({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}, 200)
        return self._one(request, resource, entry, 200, options)

    async def _delete_options(self, request: web.BaseRequest, query: dict[str, str], options: Options) -> DeleteOptions:
        wanted = deletion.parse_options(await body_object(request, options) if await request.read() else None, query)
        options.dry_run = options.dry_run or wanted.dry_run
        return wanted

    async def _delete_collection(
        self, request: web.BaseRequest, target: Target, query: dict[str, str], options: Options
    ) -> web.StreamResponse:
        resource = target.resource
        if (resource.namespaced and target.namespace is None) or "deletecollection" not in resource.verbs:
            raise method_not_allowed()
        read_options(query, options, request.method)
        wanted = await self._delete_options(request, query, options)
        parsed = read.parse_query(target.resource, target.namespace, query)
        page = read.list_page(self.core, target.resource, parsed)
        for entry in page.entries:  # the answer shows them as they were found
            try:
                await deletion.delete(self.core, target.resource, entry.namespace, entry.name, options, wanted)
            except StatusError as err:
                if err.code != 404:
                    raise
        return self.render.page(target.resource, page, shape(request.headers.get("Accept", "")), query)

    # -- subresources ------------------------------------------------------------------------------------------------------------

    async def _subresource(self, request: web.BaseRequest, target: Target, query: dict[str, str], options: Options) -> web.StreamResponse:
        core, resource, sub, method = self.core, target.resource, target.subresource, request.method
        if sub not in resource.subresources:
            raise path_not_found()
        read_options(query, options, method)
        if sub in ("status", "resize", "ephemeralcontainers"):
            if method in ("GET", "HEAD"):
                return self._one(request, resource, core.entry(resource, target.place, target.name))
            if method == "PUT":
                return await self._put(request, target, options)
            if method == "PATCH":
                return await self._patch(request, target, options)
            raise method_not_allowed()
        if sub == "scale":
            return await self._scale(request, target, options)
        if sub == "log":
            if method not in ("GET", "HEAD"):
                raise method_not_allowed()
            return await logs.serve(core, request, resource, (target.place, target.name), query)
        if sub == "finalize":
            if method != "PUT":
                raise method_not_allowed()
            entry = subresources.finalize(core, resource, target.name, await body_object(request, options), options)
            return self._one(request, resource, entry)
        if method != "POST":
            raise method_not_allowed()
        obj = await body_object(request, options)
        if sub == "binding":
            return self.render.plain(await subresources.bind(core, target.place, target.name, obj, options), 201)
        if sub == "eviction":
            return self.render.plain(await subresources.evict(core, target.place, target.name, obj, options), 201)
        return self.render.plain(subresources.token(core, target.place, target.name, obj), 201)

    async def _scale(self, request: web.BaseRequest, target: Target, options: Options) -> web.StreamResponse:
        core, resource = self.core, target.resource
        entry = core.entry(resource, target.place, target.name)
        if request.method in ("GET", "HEAD"):
            return self.render.plain(subresources.scale_of(resource, entry.obj), 200)
        if request.method == "PUT":
            scale = await body_object(request, options)
        elif request.method == "PATCH":
            patch = patching.parse(resource, request.content_type, await request.read())
            scale = patching.apply(resource, subresources.scale_of(resource, obj_of(entry, resource)), request.content_type, patch)
        else:
            raise method_not_allowed()
        return self.render.plain(await subresources.write_scale(core, resource, target.place, target.name, scale, options), 200)
