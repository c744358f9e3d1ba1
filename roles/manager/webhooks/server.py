"""The webhook server: HTTPS in front of the registry; every body is answered, none can take the process down (MGR-WH-01)."""

from __future__ import annotations

import contextlib
import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from koord import seams
from koord.process.listener import Limits, Listener
from koord.process.requests import Handler, Refused
from koord.process.requests import Request as HttpRequest
from koord.process.requests import Response as HttpResponse
from koord.process.routes import Routes
from koord.process.serving import Gate, Serving
from roles.manager.webhooks.callers import Callers
from roles.manager.webhooks.registry import WEBHOOKS, Webhook
from roles.manager.webhooks.review import Answer, BadReview, Refusal, Request, decode, encode, malformed, null_members
from roles.manager.webhooks.view import View

log = logging.getLogger("koord.manager.webhooks")

MAX_BODY = 7 * 1024 * 1024
"""More than the largest review of two objects of the API server's own limit."""

CLOSING = 1.5
"""Seconds that requests in flight have when the server closes."""

# The API servers keep their connections open for 90 s between two reviews, and it is they that are to close them.
LIMITS = Limits(connections=1024, idle=120.0)

Observe = Callable[[Webhook, str, str, bool, float], None]
"""Told of each plugin run: webhook, operation, plugin, allowed, milliseconds."""

_JSON = "application/json"


class WebhookServer:
    """Serves the active webhooks of the registry, to `callers` only. `observe` feeds metrics; `on_answer` is told of each decision."""

    def __init__(
        self,
        view: View,
        *,
        observe: Observe | None = None,
        on_answer: Callable[[Webhook, Request, Answer], None] | None = None,
        gate: Gate | None = None,
        callers: Callers | None = None,
    ) -> None:
        self.view = view
        self.active = tuple(webhook for webhook in WEBHOOKS if webhook.active(view.gates))
        self._observe = observe
        self._on_answer = on_answer
        self._context: ssl.SSLContext | None = None
        self._parting = False
        self.asked = float("-inf")  # when the last review came, by the monotonic clock
        self._gate = gate or Gate(Serving())
        self._callers = callers or Callers()
        self._listener: Listener | None = None
        self._local = True
        self.port = 0

    async def start(self, address: str, port: int, cert_file: str, key_file: str) -> None:
        """Listen; port 0 takes a free one (see `port`). Raises OSError when the port is taken."""
        self.reload(cert_file, key_file)
        routes = Routes([self._say_goodbye])
        for webhook in self.active:
            routes.add("POST", webhook.path, self._only_callers(self._route(webhook)))
        routes.add("GET", "/healthz", _healthz)
        routes.add("GET", "/elasticQuota", self._quotas)
        routes.add("POST", "/convert", self._only_callers(_convert))
        listener = Listener(routes, tls=self._tls, plain=False, limits=LIMITS, closing=CLOSING, max_body=MAX_BODY)
        self._local = await listener.listen(address, port)
        await listener.serve()
        self._listener, self.port = listener, listener.port

    def reload(self, cert_file: str, key_file: str) -> None:
        """Use this certificate, and the authorities of callers as they are now, for connections from here on."""
        context = self._callers.context()
        context.load_cert_chain(cert_file, key_file)
        self._context = context

    def _tls(self) -> ssl.SSLContext:
        assert self._context is not None
        return self._context

    def part_with_clients(self) -> None:
        """Close each connection with its next answer: whoever asks again connects anew, by then to another replica."""
        self._parting = True

    async def _say_goodbye(self, request: HttpRequest, handler: Handler) -> HttpResponse:
        response = await handler(request)
        if self._parting:
            response.headers["Connection"] = "close"
        return response

    async def stop(self) -> None:
        """Finish requests in flight and close."""
        listener, self._listener = self._listener, None
        if listener is not None:
            await listener.stop()

    def renew_callers(self) -> bool:
        """Look at the authorities of callers again: whether there are others. Raises ValueError; the ones of before then stay."""
        return self._callers.renew()

    def _only_callers(self, handler: Handler) -> Handler:
        """The handler for those who may ask; the others are refused before their body is read."""

        async def serve(http: HttpRequest) -> HttpResponse:
            refused = self._callers.refusal(http)
            return _reply(403, encode(Answer(False, 403, refused), uid="")) if refused else await handler(http)

        return serve

    def _route(self, webhook: Webhook) -> Handler:
        async def serve(http: HttpRequest) -> HttpResponse:
            self.asked = seams.monotonic()
            try:
                request = decode(await http.read())
            except Refused as error:
                return _reply(error.status, encode(Answer(False, error.status, str(error)), uid=""))
            except BadReview as error:
                return _reply(400, encode(Answer(False, 400, str(error)), uid=""))
            answer = await self.answer(webhook, request)
            return _reply(200, encode(answer, uid=request.uid, api_version=request.api_version))

        return serve

    async def answer(self, webhook: Webhook, request: Request) -> Answer:
        """The answer to one request: a refusal or a failure becomes an answer too, never an exception."""

        async def timer(plugin: str, work: Awaitable[Any]) -> Any:
            started, allowed = seams.perf_counter(), False
            try:
                result = await work
                allowed = True
                return result
            finally:
                if self._observe is not None:
                    self._observe(webhook, request.operation, plugin, allowed, (seams.perf_counter() - started) * 1000)

        try:
            wrong = null_members(request)
            if wrong:
                raise Refusal(wrong, 400)
            answer = await webhook.handle(request, self.view, timer)
            answer.warnings += request.warnings
        except Refusal as refusal:
            answer = Answer(False, refusal.code or (500 if webhook.mutating else 400), refusal.message)
        except Exception as error:
            wrong = malformed(request)
            answer = Answer(False, 400, wrong) if wrong else _defect(webhook, request, error)
        if self._on_answer is not None:
            with contextlib.suppress(Exception):
                self._on_answer(webhook, request, answer)
        return answer

    async def _quotas(self, http: HttpRequest) -> HttpResponse:
        if self._callers.shows_certificate(http):  # of an authority that speaks for API servers, not for the cluster's users
            refused = self._callers.refusal(http)
            refusal = HttpResponse(status=403, text=f"Forbidden: {refused}\n") if refused else None
        else:
            refusal = None if self._local else await self._gate.refusal(http)
        return refusal or _reply(200, orjson.dumps(self.view.quotas.dump()))


def _defect(webhook: Webhook, request: Request, error: Exception) -> Answer:
    """A defect of ours must answer, or the API server waits for its timeout."""
    log.error("%s: %s %s/%s failed", webhook.path, request.operation, request.namespace, request.name, exc_info=error)
    return Answer(False, 500, f"internal error: {type(error).__name__}: {error}")


def _reply(status: int, body: bytes) -> HttpResponse:
    return HttpResponse(status=status, body=body, content_type=_JSON)


async def _healthz(http: HttpRequest) -> HttpResponse:
    return HttpResponse(text="ok")


async def _convert(http: HttpRequest) -> HttpResponse:
    """CRD conversion: our CRDs have one stored version with the same bytes in every served one, so objects pass unchanged."""
    try:
        review = orjson.loads(await http.read())
        request = review["request"]
        wanted = request["desiredAPIVersion"]
        converted = [{**obj, "apiVersion": wanted} for obj in request["objects"]]
        uid = request["uid"]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        return _reply(400, orjson.dumps({"message": f"the body is no ConversionReview: {error}"}))
    answer = {"uid": uid, "convertedObjects": converted, "result": {"status": "Success"}}
    return _reply(200, orjson.dumps({"apiVersion": review.get("apiVersion"), "kind": "ConversionReview", "response": answer}))
