"""The API client: verbs on kinds, objects as plain dicts."""

from __future__ import annotations

import asyncio
import copy
import re
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Literal, Self

import msgspec
import orjson

from koord import seams
from koord.api.kinds import PODS, Kind
from koord.api.objects import ListMeta
from koord.kube import errors
from koord.kube.config import ClientConfig
from koord.kube.http1 import Response
from koord.kube.leadership import WRITE_AGE, Fence, Fresh
from koord.kube.ratelimit import Priority
from koord.kube.transport import REQUEST_TIMEOUT, Observer, Transport, retry_after
from koord.kube.wire import deeply

PAGE = 500  # objects a page of a list
WATCH_TIMEOUT = (300, 600)  # seconds after which the server ends a watch, at random between, so that clients spread
SILENCE = 60.0  # seconds beyond that without a byte: the connection is dead

PATIENCE = 15.0  # seconds that a command at the keyboard waits for an answer
FIELD_MANAGER = "koord"  # that changes are written as, unless told otherwise
STREAMING_LISTS = (1, 32)  # the Kubernetes version from which on lists are streamed by default

PATCH_TYPES = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}
PatchType = Literal["merge", "json", "strategic", "apply"]
Object = dict[str, Any]
Objects = list[Object]
Lines = list[bytes]


@dataclass(frozen=True, slots=True)
class ListResult:
    """The objects of a list and the resource version to watch from."""

    items: list[Object]
    resource_version: str


class ListHead(msgspec.Struct):
    """A list without its objects: decoding it skips them at memory speed."""

    metadata: ListMeta = ListMeta()


_list_head = deeply(msgspec.json.Decoder(ListHead).decode)


def selection(label_selector: str = "", field_selector: str = "") -> dict[str, str]:
    """Query parameters of selectors."""
    params = {}
    if label_selector:
        params["labelSelector"] = label_selector
    if field_selector:
        params["fieldSelector"] = field_selector
    return params


@dataclass(slots=True)
class _Server:
    """What was found out about the server, for all clients that share the connections."""

    eviction: str = "policy/v1"
    streams_lists: bool | None = None
    asking: asyncio.Future[None] | None = None  # whoever wants to know it, too, waits for this answer


class Client:
    """Talks to one API server. An async context manager; belongs to one event loop.

    `qps` and `burst` pace all requests together (None: unpaced); `role` is shown in the user agent; `observer` is told of
    each try (method, status, seconds); `patience`: seconds for all tries of one request, where somebody waits for it (None: as many
    as they take); with a `fence`, no byte of a write leaves while it is not held, nor later than WRITE_AGE seconds after it was asked
    for. Methods raise `koord.kube.errors.ApiError`; connection failures, 429 and 5xx are retried first where that is safe.
    """

    def __init__(
        self,
        config: ClientConfig,
        *,
        qps: float | None = None,
        burst: int | None = None,
        role: str = "",
        observer: Observer | None = None,
        fence: Fence | None = None,
        patience: float | None = None,
    ) -> None:
        self.config = config
        self.transport = Transport(config, qps=qps, burst=burst, role=role, observer=observer, patience=patience)
        self._fence = fence
        self._fresh: Fresh | None = None
        self._priority: Priority | None = None
        self._server = _Server()

    def fenced(self, fence: Fence) -> Client:
        """This client, on the same connections, for writes that leave only while `fence` is held; NotLeading is raised otherwise."""
        other = copy.copy(self)
        other._fence = fence
        return other

    def within(self, seconds: float) -> Client:
        """This client, on the same connections, for what has just been decided: its writes leave within so many seconds from now, all of
        them together, or not at all. One that was not sent in time raises Unreachable: decide anew."""
        other = copy.copy(self)
        other._fresh = Fresh(self._fence, seconds)
        return other

    def ranked(self, priority: Priority) -> Client:
        """This client, on the same connections, whose requests are all of one class."""
        other = copy.copy(self)
        other._priority = priority
        return other

    def lane(self) -> Client:
        """A client of the same server with connections of its own, no pacing and no fence. It may belong to another event loop."""
        config = replace(self.config, credentials=self.config.credentials.for_another_loop())
        return Client(config, role=self.transport.role, observer=self.transport.observer)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self.transport.close()

    async def raw(
        self,
        method: str,
        path: str,
        body: bytes | Object | None = None,
        *,
        content_type: str = "application/json",
        timeout: float = REQUEST_TIMEOUT,
    ) -> tuple[int, bytes]:
        """Any request; the status and the body as they come. Raises Unreachable and NotLeading only."""
        data = orjson.dumps(body) if isinstance(body, dict) else body
        response = await self._request(method, path, body=data, content_type=content_type, timeout=timeout)
        return response.status, response.body

    async def _request(self, method: str, path: str, *, priority: Priority = Priority.STATUS, **options: Any) -> Response:
        priority = priority if self._priority is None else self._priority
        fence: Fence | None = self._fresh
        if fence is None and self._fence is not None:
            fence = Fresh(self._fence, WRITE_AGE)
        return await self.transport.request(method, path, fence=fence, priority=priority, **options)

    async def _call(self, method: str, path: str, obj: Any = None, **options: Any) -> Object:
        body = obj if obj is None or isinstance(obj, bytes) else orjson.dumps(obj)
        answer = _decode(await self._request(method, path, body=body, **options))
        if not isinstance(answer, dict):
            raise errors.ApiError(200, "BadAnswer", f"{method} {path}: the answer is no object")
        return answer

    # -- reading --

    async def get(self, kind: Kind, name: str, namespace: str | None = None, *, subresource: str | None = None) -> Object:
        """One object. Raises NotFound."""
        return await self._call("GET", kind.path(namespace, name, subresource))

    async def list(
        self, kind: Kind, namespace: str | None = None, *, label_selector: str = "", field_selector: str = "", limit: int = PAGE
    ) -> ListResult:
        """All objects (of a namespace, or of all), read in pages of `limit` objects; 0 reads them in one answer."""
        items: Objects = []
        version = ""
        try:
            async for page in self.pages(kind, namespace, label_selector=label_selector, field_selector=field_selector, limit=limit):
                answer = orjson.loads(page)
                items.extend(answer.get("items") or ())
                version = (answer.get("metadata") or {}).get("resourceVersion") or ""
        except errors.Gone:
            if not limit:
                raise
            # the continuation expired on the way: one answer with everything is the only consistent list left
            return await self.list(kind, namespace, label_selector=label_selector, field_selector=field_selector, limit=0)
        return ListResult(items, version)

    async def pages(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = PAGE,
        resource_version: str = "",
    ) -> AsyncGenerator[bytes, None]:
        """The undecoded pages of a list. If a continuation has expired, raises Gone: begin anew with `limit=0`."""
        params = selection(label_selector, field_selector)
        if limit:
            params["limit"] = str(limit)
        if resource_version:
            params["resourceVersion"] = resource_version
        if resource_version not in ("", "0"):
            params["resourceVersionMatch"] = "NotOlderThan"
        path = kind.path(namespace)
        while True:
            response = await self._request("GET", path, params=params)
            if response.status != 200:
                raise errors.from_response(response.status, response.body, retry_after=retry_after(response.headers))
            yield response.body
            token = _list_head(response.body).metadata.continue_
            if not token:
                return
            params = {**params, "continue": token}
            params.pop("resourceVersion", None)
            params.pop("resourceVersionMatch", None)

    async def streams_lists(self) -> bool:
        """Whether the server can send a list as the beginning of a watch; asked once. Raises Unreachable."""
        server = self._server
        while server.streams_lists is None:
            if server.asking is not None:
                await asyncio.shield(server.asking)
                continue
            asking = server.asking = asyncio.get_running_loop().create_future()
            try:
                status, body = await self.raw("GET", "/version")
                server.streams_lists = status == 200 and _version(body) >= STREAMING_LISTS
            except errors.ApiError as error:
                asking.set_exception(error)
                asking.exception()  # nobody else need have asked
                raise
            finally:
                server.asking = None
                if not asking.done():
                    asking.set_result(None)
        return server.streams_lists

    async def watch(self, kind: Kind, namespace: str | None = None, **options: Any) -> AsyncGenerator[bytes, None]:
        """The lines of a watch, each one undecoded event; ends when the server ends it. `options` are those of `watch_batches`."""
        async for lines in self.watch_batches(kind, namespace, **options):
            for line in lines:
                yield line

    async def watch_batches(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        resource_version: str = "",
        label_selector: str = "",
        field_selector: str = "",
        bookmarks: bool = True,
        timeout_seconds: int | None = None,
        initial_events: bool = False,
    ) -> AsyncGenerator[Lines, None]:
        """The lines of a watch, as many at once as have come. A line cut off by the end of the stream is dropped.

        With `initial_events` the objects that are there come first, then a bookmark with the annotation
        `k8s.io/initial-events-end` (see `streams_lists`).
        """
        seconds = timeout_seconds if timeout_seconds is not None else seams.rng().randint(*WATCH_TIMEOUT)
        params = {"watch": "true", "timeoutSeconds": str(seconds), **selection(label_selector, field_selector)}
        if resource_version:
            params["resourceVersion"] = resource_version
        if bookmarks:
            params["allowWatchBookmarks"] = "true"
        if initial_events:
            params |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        rest: Lines = []
        async with self.transport.stream(kind.path(namespace), params) as content:
            async for chunk in content.iter_any(seconds + SILENCE):
                lines = chunk.split(b"\n")
                if len(lines) == 1:  # the middle of a long line
                    rest.append(chunk)
                    continue
                if rest:
                    lines[0] = b"".join((*rest, lines[0]))
                    rest.clear()
                tail = lines.pop()
                if tail:
                    rest.append(tail)
                yield [line for line in lines if line]

    # -- writing --

    async def create(self, kind: Kind, obj: Object | bytes, namespace: str | None = None) -> Object:
        """Create an object. The namespace is the argument, else the object's own, else the configuration's."""
        if namespace is None and kind.namespaced:
            namespace = (obj.get("metadata") or {}).get("namespace") if isinstance(obj, dict) else None
            namespace = namespace or self.config.namespace
        return await self._call("POST", kind.path(namespace), obj)

    async def replace(self, kind: Kind, obj: Object, namespace: str | None = None, *, subresource: str | None = None) -> Object:
        """Replace an object by one that was read whole; with a resourceVersion in it, raises Conflict if it changed meanwhile."""
        metadata = obj.get("metadata") or {}
        return await self._call("PUT", kind.path(namespace or metadata.get("namespace"), metadata.get("name"), subresource), obj)

    async def patch(
        self,
        kind: Kind,
        name: str,
        body: Any,
        namespace: str | None = None,
        *,
        type: PatchType = "merge",
        subresource: str | None = None,
        field_manager: str = FIELD_MANAGER,
        force: bool = False,
    ) -> Object:
        """Change an object in part. `force` takes fields over from other managers (apply only)."""
        params = {"fieldManager": field_manager}
        if type == "apply" and force:
            params["force"] = "true"
        return await self._call(
            "PATCH",
            kind.path(namespace, name, subresource),
            body,
            params=params,
            content_type=PATCH_TYPES[type],
            idempotent=type != "json",
        )

    async def delete(
        self,
        kind: Kind,
        name: str,
        namespace: str | None = None,
        *,
        grace_period_seconds: int | None = None,
        preconditions: Mapping[str, str] | None = None,
        propagation: str | None = None,
        options: Mapping[str, Any] | None = None,
        repeat: bool = True,
    ) -> Object:
        """Delete an object; `preconditions` are uid and resourceVersion. Returns the object or a Status.

        `options` is a whole metav1.DeleteOptions that the other arguments are laid over. Without `repeat` a request whose answer was lost
        is not sent again.
        """
        body: Object = {**(options or {}), "apiVersion": "v1", "kind": "DeleteOptions"}
        if grace_period_seconds is not None:
            body["gracePeriodSeconds"] = grace_period_seconds
        if preconditions:
            body["preconditions"] = {**(body.get("preconditions") or {}), **preconditions}
        if propagation:
            body["propagationPolicy"] = propagation
        return await self._call("DELETE", kind.path(namespace, name), body, idempotent=repeat)

    async def bind(self, namespace: str, pod: str, node: str, uid: str | None = None) -> None:
        """Bind a pod to a node. Raises Conflict if the pod is bound, deleted, or (with `uid`) another one by now."""
        metadata: Object = {"name": pod, "namespace": namespace}
        if uid:
            metadata["uid"] = uid
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": metadata,
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self._call("POST", PODS.path(namespace, pod, "binding"), binding, priority=Priority.BIND)

    async def evict(
        self,
        namespace: str,
        pod: str,
        *,
        grace_period_seconds: int | None = None,
        uid: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Evict a pod through the eviction API. Raises TooManyRequests at once if a disruption budget does not allow it now.

        `options` is a whole metav1.DeleteOptions that the other arguments are laid over.
        """
        wanted: Object = dict(options or {})
        if grace_period_seconds is not None:
            wanted["gracePeriodSeconds"] = grace_period_seconds
        if uid:
            wanted["preconditions"] = {**(wanted.get("preconditions") or {}), "uid": uid}
        eviction: Object = {"kind": "Eviction", "metadata": {"name": pod, "namespace": namespace}, "deleteOptions": wanted}
        path = PODS.path(namespace, pod, "eviction")
        try:
            await self._call("POST", path, {"apiVersion": self._server.eviction, **eviction}, retry_429=False, priority=Priority.BIND)
        except errors.BadRequest as error:
            if self._server.eviction == "policy/v1beta1" or "policy/v1" not in error.message:
                raise
            self._server.eviction = "policy/v1beta1"  # a server before 1.22
            await self._call("POST", path, {"apiVersion": self._server.eviction, **eviction}, retry_429=False, priority=Priority.BIND)


def _version(body: bytes) -> tuple[int, int]:
    """Major and minor version of a server ("1", "32+"); (0, 0) if it does not say."""
    try:
        said = orjson.loads(body)
        return int(said["major"]), int(re.match(r"\d*", said["minor"])[0])  # type: ignore[index]
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return (0, 0)


def _decode(response: Response) -> Any:
    if response.status >= 300 or response.status < 200:
        raise errors.from_response(response.status, response.body, retry_after=retry_after(response.headers))
    if not response.body:
        return {}
    try:
        return orjson.loads(response.body)
    except orjson.JSONDecodeError as error:
        raise errors.ApiError(response.status, "BadAnswer", f"the answer is no JSON: {error}") from error
