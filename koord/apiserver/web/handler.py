"""The HTTP face: one coroutine that every request goes through."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote

import orjson
from aiohttp import web

from koord import seams
from koord.apiserver.errors import StatusError, bad_request, internal, method_not_allowed, path_not_found, too_large, unauthorized
from koord.apiserver.rbac import Attributes, effective, selected_name, verb_of
from koord.apiserver.rest.context import Options, flag
from koord.apiserver.store import Obj
from koord.apiserver.users import User
from koord.apiserver.web import discovery
from koord.apiserver.web.objects import Call, ObjectHandlers, Target
from koord.apiserver.web.render import respond, shape, warn
from koord.process.requests import http_date

if TYPE_CHECKING:
    from koord.apiserver.core import Core
    from koord.apiserver.resources import ResourceTable

log = logging.getLogger(__name__)


CHECKS = ("ping", "store", "admission", "controllers")


def health(path: str, rest: list[str], query: dict[str, str], *, ready: bool, kept: bool) -> web.Response:
    """`ok`, or the list of checks with ?verbose; 500 but for /livez while the server starts or stops, or if the last write was not kept."""
    if rest and rest[0] not in CHECKS:
        return web.Response(status=404, text="404 page not found\n")
    alive = path == "livez"
    results = {check: alive or kept or check != "store" for check in CHECKS}
    if rest:
        results = {rest[0]: results[rest[0]]}
    if not (ready or alive):
        results["shutdown"] = False
    good = all(results.values())
    if "verbose" in query or not good:
        lines = [f"[+]{check} ok" if passed else f"[-]{check} failed: reason withheld" for check, passed in results.items()]
        lines.append(f"{path} check {'passed' if good else 'failed'}")
        return web.Response(status=200 if good else 500, text="\n".join(lines) + "\n")
    return web.Response(text="ok")


def split(path_qs: str) -> tuple[str, dict[str, str]]:
    """Path and query of a request target. Of a repeated parameter the first counts."""
    path, _, query = path_qs.partition("?")
    if not query:
        return path, {}
    if "%" in query or "+" in query:
        return path, dict(reversed(parse_qsl(query, keep_blank_values=True)))
    pairs = (pair.partition("=") for pair in reversed(query.split("&")) if pair)
    return path, {name: value for name, _, value in pairs}


def resolve(table: ResourceTable, segments: list[str]) -> Target | None:
    """The target of the path segments after /api or /apis, core group as ["v1", …]; None when nothing is served there."""
    group, version, *rest = ("", *segments[1:]) if segments[0] == "api" else segments[1:]
    if "%" in "".join(rest):
        rest = [unquote(r) for r in rest]
    if len(rest) >= 3 and rest[0] == "namespaces":
        resource = table.by_path(group, version, rest[2])
        if resource is not None and resource.namespaced:
            return Target(resource, rest[1], *rest[3:]) if len(rest) <= 5 else None
    resource = table.by_path(group, version, rest[0])
    if resource is None or len(rest) > 3 or (resource.namespaced and len(rest) > 1):
        return None
    return Target(resource, None, *rest[1:])


def unserved(method: str, segments: list[str], query: dict[str, str]) -> Attributes:
    """What is asked for by a path of which nothing is served: like any other resource, so that who may read it learns that it is not
    there (404, not 403)."""
    group, _, *rest = ("", *segments[1:]) if segments[0] == "api" else segments[1:]
    rest = [unquote(part) for part in rest]
    namespace = rest[1] if rest[0] == "namespaces" and len(rest) > 1 else ""
    if namespace and len(rest) > 2 and rest[2] not in ("status", "finalize"):
        rest = rest[2:]
    resource, name, subresource = [*rest, "", ""][:3]
    return Attributes(verb_of(method, name=name, watch=flag(query, "watch")), group, resource, subresource, namespace, name)


def _asked(method: str, target: Target, query: dict[str, str]) -> Attributes:
    """What is asked for by a request for a resource."""
    verb, resource = verb_of(method, name=target.name, watch=flag(query, "watch")), target.resource
    # A list or watch of one name is about that name, as far as rules with resourceNames go.
    name = target.name or (selected_name(query.get("fieldSelector", "")) if verb in ("list", "watch") else "")
    # a namespace lies in itself: a Role in it may allow to read it
    place = target.name if resource.kind == "Namespace" and not resource.group else target.place
    return Attributes(verb, resource.group, resource.plural, target.subresource, place, name)


def _watch_path(method: str, segments: list[str], query: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """The older spelling of a watch, …/v1/watch/…, as a list that is watched. Raises 405 for what does not read."""
    at = 2 if segments[0] == "api" else 3
    if segments[at] != "watch" or len(segments) == at + 1:
        return segments, query
    if method not in ("GET", "HEAD"):
        raise method_not_allowed()
    segments, query = [*segments[:at], *segments[at + 1 :]], {**query, "watch": "1"}
    if len(segments) - at in (2, 4):
        query["fieldSelector"] = f"metadata.name={segments.pop()}"
    return segments, query


MAX_BODY = 3 * 1024 * 1024  # bytes of a request, as kube-apiserver takes them
# bytes of a request's target: selectors may be long. kube-apiserver takes a mebibyte; reading one would hold up all others for seconds.
MAX_LINE = 128 * 1024
_OPEN = frozenset({"healthz", "livez", "readyz", "version"})


def error_response(err: StatusError, warnings: list[str] | None = None) -> web.Response:
    """A Status for an error."""
    seconds = int((err.details or {}).get("retryAfterSeconds") or 0)
    response = respond(orjson.dumps(err.status()), err.code, {"Retry-After": str(seconds)} if seconds else {})
    warn(response, warnings or [])
    return response


_TOO_DEEP = "Recursion limit reached"  # what orjson says of an object of more levels than it writes


class Front:
    """Authenticates, routes and answers. `handle` never raises but for cancellation."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.objects = ObjectHandlers(core)
        self.ready = True

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request, and say by which clock."""
        answer = await self._answer(request)
        if not answer.prepared:
            answer.headers["Date"] = http_date(int(seams.now()))
        return answer

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        options = Options()
        try:
            return await self._route(request, options)
        except StatusError as err:
            return error_response(err, options.warnings)
        except web.HTTPRequestEntityTooLarge:
            return error_response(too_large(f"limit is {MAX_BODY}"))
        except asyncio.CancelledError:
            raise
        except ConnectionResetError:  # the client has gone while it was told something; nobody reads this answer
            return web.Response(status=499)
        except Exception as err:
            if isinstance(err, RecursionError) or (isinstance(err, TypeError) and str(err) == _TOO_DEEP):
                return error_response(bad_request("the object is nested too deeply: this server stores at most 254 levels"))
            log.exception("%s %s failed", request.method, request.path_qs)
            return error_response(internal(f"{type(err).__name__}: {err}"))

    async def _route(self, request: web.BaseRequest, options: Options) -> web.StreamResponse:
        path, query = split(request.raw_path)
        segments = [s for s in path.split("/") if s]
        first = segments[0] if segments else ""
        headers = request.headers
        user = self.core.tokens.user(headers.get("Authorization"))
        if user is None and "Authorization" not in headers and self.core.authorizer is not None:
            user = User()  # anonymous: roles say what that may
        if user is None and first not in _OPEN:
            raise unauthorized()
        options.user = user or User()
        if user is not None and any(name.lower().startswith("impersonate-") for name in headers):
            options.user = effective(user, headers, self.core.authorizer)
        options.user_agent = headers.get("User-Agent", "").encode(errors="surrogateescape").decode(errors="replace")
        if (first == "api" and len(segments) > 2) or (first == "apis" and len(segments) > 3):
            segments, query = _watch_path(request.method, segments, query)
            target = resolve(self.core.resources, segments)
            if target is None:
                self._authorize(options, unserved(request.method, segments, query))
                group = "" if first == "api" else segments[1]
                if all(r.custom for r in self.core.resources.of_group(group)):
                    return _page_not_found()
                raise path_not_found()
            if self.core.authorizer is not None:
                self._authorize(options, _asked(request.method, target, query))
            return await self.objects.dispatch(Call(request, target, query, options))
        self._authorize(options, Attributes(request.method.lower(), path="/" + "/".join(segments)))
        return await self._system(request, segments, query)

    def _authorize(self, options: Options, wanted: Attributes) -> None:
        """Raise 403 for what the user may not do."""
        authorizer = self.core.authorizer
        if authorizer is None:
            return

        def authorize(verb: str) -> None:
            authorizer.check(options.user, wanted._replace(verb=verb))

        authorize(wanted.verb)
        options.authorize = authorize

    async def _system(self, request: web.BaseRequest, segments: list[str], query: dict[str, str]) -> web.StreamResponse:
        """Everything that is not a resource."""
        table = self.core.resources
        if request.method not in ("GET", "HEAD"):
            raise path_not_found()
        found: Obj | None = None
        match segments:
            case []:
                found = {"paths": ["/api", "/api/v1", "/apis", "/healthz", "/livez", "/openapi/v2", "/openapi/v3", "/readyz", "/version"]}
            case ["healthz" | "livez" | "readyz", *rest]:
                disk = self.core.store.disk
                return health(segments[0], rest, query, ready=self.ready, kept=disk is None or not disk.failure)
            case ["version", *_]:
                return respond(orjson.dumps(discovery.version(), option=orjson.OPT_INDENT_2))
            case ["openapi", *rest]:
                from koord.apiserver.openapi import documents

                return documents.answer(self.core, rest, request)
            case ["api" | "apis" as root]:
                wanted = shape(request.headers.get("Accept", ""))
                if wanted.as_ == "APIGroupDiscoveryList":
                    version = wanted.version or "v2"
                    kind = f"application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList"
                    body = orjson.dumps(discovery.aggregated(table, version, core=root == "api"))
                    return respond(body, headers={"Content-Type": kind})
                found = discovery.api_versions(request.host) if root == "api" else discovery.group_list(table)
            case ["apis", group]:
                found = discovery.api_group(table, group)
            case ["api", version]:
                found = discovery.resource_list(table, "", version)
            case ["apis", group, version]:
                found = discovery.resource_list(table, group, version)
        if found is None:
            return _page_not_found()
        return respond(orjson.dumps(found))


def _page_not_found() -> web.Response:
    """404 for a path that belongs to no API group."""
    return web.Response(status=404, text="404 page not found\n")
