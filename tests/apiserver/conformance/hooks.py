"""What is compared, continued: what admission webhooks are asked, and what comes of their answers."""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from koord.process import certificates

from .scenarios import MAPS, PODS, config_map, pod
from .transcript import APPLY, MERGE, Transcript, settle

ADMISSION = "/apis/admissionregistration.k8s.io/v1/"
MUTATING, VALIDATING = "mutatingwebhookconfigurations", "validatingwebhookconfigurations"
RULE = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["configmaps"]}
Answer = Callable[[dict[str, Any]], Any]


class Hooks:
    """A server of webhooks. An answer is a response, an HTTP status, or bytes instead of an AdmissionReview."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.reviews: dict[str, list[dict[str, Any]]] = {}
        hooks = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *told: Any) -> None:
                """Say nothing."""

            def do_POST(self) -> None:
                review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, answer = hooks.answer(self.path.partition("?")[0], review)
                with contextlib.suppress(OSError):  # who asked did not wait
                    self.send_response(status)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(answer)))
                    self.end_headers()
                    self.wfile.write(answer)

        with tempfile.TemporaryDirectory() as folder:
            made = certificates.ensure(Path(folder) / "certificates", "127.0.0.1")
            context = made.context()
            self.authority = base64.b64encode(made.ca).decode()
        self._server = server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        server.socket = context.wrap_socket(server.socket, server_side=True)
        self.url = f"https://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Listen no longer."""
        self._server.shutdown()
        self._server.server_close()

    def answer(self, path: str, review: dict[str, Any]) -> tuple[int, bytes]:
        """(HTTP status, body)."""
        self.reviews.setdefault(path, []).append(review)
        out = self.answers.get(path, lambda _: {"allowed": True})(review["request"])
        if isinstance(out, int):
            return out, b"{}"
        if isinstance(out, bytes):
            return 200, out
        response = {"uid": review["request"]["uid"], **out}
        return 200, json.dumps({"kind": "AdmissionReview", "apiVersion": review["apiVersion"], "response": response}).encode()


@functools.cache
def server() -> Hooks:
    return Hooks()


def close() -> None:
    """End the server, where there is one: other tests of this process ask each port that it listens on."""
    if server.cache_info().currsize:
        server().close()
        server.cache_clear()


def _hook(t: Transcript, called: str, **more: Any) -> dict[str, Any]:
    """A webhook for the namespace of this run."""
    client = {"url": f"{server().url}/{t.ns}/{called}", "caBundle": server().authority}
    here = {"matchLabels": {"kubernetes.io/metadata.name": t.ns}}
    usual = {"clientConfig": client, "rules": [RULE], "admissionReviewVersions": ["v1"], "sideEffects": "None", "namespaceSelector": here}
    return {"name": f"{called}.example.com", **usual, **more}


def _on(t: Transcript, name: str, answer: Answer) -> None:
    server().answers[f"/{t.ns}/{name}"] = answer


def _asked(t: Transcript, name: str) -> list[dict[str, Any]]:
    return server().reviews.setdefault(f"/{t.ns}/{name}", [])


@contextlib.contextmanager
def _registered(t: Transcript, kind: str, *hooks: dict[str, Any], name: str = "h", waits: bool = True) -> Iterator[None]:
    """Webhooks that are taken up when this begins, where they can be asked. kube-apiserver does so with a delay."""
    status, out = t.raw("POST", ADMISSION + kind, {"metadata": {"name": f"{t.ns}-{name}"}, "webhooks": list(hooks)})
    assert status == 201, out
    try:
        last = hooks[-1]["name"].partition(".")[0]
        for _ in range(400 if waits else 0):
            t.raw("POST", MAPS + "?dryRun=All", {"metadata": {"name": "probe", "labels": {"watched": "yes"}}})
            if _asked(t, last):
                break
            settle()
        if not waits:
            time.sleep(1.5)
        for hook in hooks:
            _asked(t, hook["name"].partition(".")[0]).clear()
        yield
    finally:
        t.raw("DELETE", f"{ADMISSION}{kind}/{t.ns}-{name}")


def _said(out: Any) -> str:
    return str(out.get("message") or "").replace(server().url, "URL") if isinstance(out, dict) else ""


def _patch(*operations: dict[str, Any]) -> dict[str, Any]:
    return {"allowed": True, "patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(list(operations)).encode()).decode()}


def hook_answers(t: Transcript) -> None:
    review = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}
    with _registered(t, VALIDATING, _hook(t, "v")):
        for out in (
            {"allowed": False},
            {"allowed": False, "status": {"message": "no way", "code": 418, "reason": "Teapot"}},
            {"allowed": False, "status": {"code": 200, "message": "odd"}},
            {"allowed": False, "status": {"message": "m", "details": {"causes": [{"field": "x", "message": "y"}]}}},
            {"allowed": True, "warnings": ["careful", "again"]},
            {"allowed": True, "status": {"message": "ignored"}},
            json.dumps({**review, "response": {"uid": "wrong", "allowed": True}}).encode(),
            json.dumps(review).encode(),
            _patch(),
        ):
            _on(t, "v", lambda _, out=out: out)
            status, answer = t.raw("POST", MAPS + "?dryRun=All", config_map("m"))
            t.note(out=str(out)[:60], status=status, reason=answer.get("reason"), message=_said(answer), warnings=t.warnings)
        for out in (500, b"no JSON", json.dumps({**review, "kind": "Other"}).encode()):
            _on(t, "v", lambda _, out=out: out)
            status, answer = t.raw("POST", MAPS + "?dryRun=All", config_map("m"))
            t.note(out=str(out)[:60], status=status, message=_said(answer).partition("call webhook:")[0])


def hook_reviews(t: Transcript) -> None:
    """What a webhook is told of requests."""
    every = [{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]}]
    with _registered(t, VALIDATING, _hook(t, "all", rules=every, matchPolicy="Exact", sideEffects="NoneOnDryRun")):
        t.raw("POST", MAPS, config_map("m", a="1"))
        t.raw("PATCH", MAPS + "/m?fieldManager=me", {"data": {"a": "2"}}, MERGE)
        t.raw("POST", MAPS + "?dryRun=All&fieldValidation=Strict", config_map("dry"))
        t.raw("DELETE", MAPS + "/m")
        t.raw("POST", PODS, pod("p"))
        t.raw("POST", PODS + "/p/binding", {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}})
        t.raw("PATCH", PODS + "/p/status", {"status": {"phase": "Running"}}, MERGE)
        t.raw("POST", PODS + "/p/eviction", {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}})
        template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}
        deployments = "/apis/apps/v1/namespaces/{ns}/deployments"
        t.raw("POST", deployments, {"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}})
        t.raw("PATCH", deployments + "/d/scale", {"spec": {"replicas": 3}}, MERGE)
        for review in _asked(t, "all"):
            request = review["request"]
            told = {key: request.get(key) for key in ("operation", "name", "kind", "requestKind", "resource", "subResource", "dryRun")}
            kinds = [(request.get(key) or {}).get("kind") for key in ("object", "oldObject")]
            t.note(**told, options=request["options"], kinds=kinds, keys=sorted(request.keys() - {"name"}))


def hook_failures(t: Transcript) -> None:
    for policy in ("Fail", "Ignore"):
        with _registered(t, VALIDATING, _hook(t, "slow", failurePolicy=policy, timeoutSeconds=1), name="slow"):
            _on(t, "slow", lambda _: (time.sleep(2.5), {"allowed": True})[1])
            status, out = t.raw("POST", MAPS + "?dryRun=All", config_map("m"))
            t.note(policy=policy, status=status, reason=out.get("reason"), message=_said(out))
        server().answers.pop(f"/{t.ns}/slow")
        away = {"url": "https://127.0.0.1:1/x", "caBundle": server().authority}
        with _registered(t, VALIDATING, _hook(t, "away", failurePolicy=policy, clientConfig=away), name="away", waits=False):
            status, out = t.raw("POST", MAPS + "?dryRun=All", config_map("m"))
            t.note(policy=policy, status=status, reason=out.get("reason"), message=_said(out).partition(": dial")[0][:60])
        broken = [{"name": "broken", "expression": "object.data.missing == 'x'"}]
        with _registered(t, VALIDATING, _hook(t, "cel", failurePolicy=policy, matchConditions=broken), name="cel", waits=False):
            status, out = t.raw("POST", MAPS + "?dryRun=All", config_map("m", a="1"))
            t.note(policy=policy, status=status, reason=out.get("reason"), message=_said(out))


def hook_matches(t: Transcript) -> None:
    conditions = [
        {"name": "named", "expression": "object.metadata.name != 'skip'"},
        {"name": "may", "expression": "authorizer.group('').resource('pods').check('create').allowed()"},
    ]
    with _registered(t, VALIDATING, _hook(t, "if", matchConditions=conditions)):
        _on(t, "if", lambda _: {"allowed": False})
        t.note(conditions=[t.raw("POST", MAPS + "?dryRun=All", config_map(name))[0] for name in ("skip", "m")])
    with _registered(t, VALIDATING, _hook(t, "seen", objectSelector={"matchLabels": {"watched": "yes"}})):
        _on(t, "seen", lambda _: {"allowed": False})
        t.raw("POST", MAPS, config_map("free"))
        comes = t.raw("PATCH", MAPS + "/free", {"metadata": {"labels": {"watched": "yes"}}}, MERGE)[0]
        _on(t, "seen", lambda _: {"allowed": True})
        t.raw("PATCH", MAPS + "/free", {"metadata": {"labels": {"watched": "yes"}}}, MERGE)
        _on(t, "seen", lambda _: {"allowed": False})
        goes = t.raw("PATCH", MAPS + "/free", {"metadata": {"labels": {"watched": "no"}}}, MERGE)[0]
        t.note(comes=comes, goes=goes)


def hook_patches(t: Transcript) -> None:
    """Patches, a second call for who asked for it, and whose the fields are that webhooks set."""

    def first(request: dict[str, Any]) -> dict[str, Any]:
        data = request["object"].get("data") or {}
        if "one" not in data:
            return _patch({"op": "add", "path": "/data/one", "value": "1"})
        return _patch({"op": "add", "path": "/data/seen", "value": ",".join(sorted(data))})

    with (
        _registered(t, MUTATING, _hook(t, "one", reinvocationPolicy="IfNeeded"), name="a"),
        _registered(t, MUTATING, _hook(t, "two"), name="b"),
    ):
        _on(t, "one", first)
        _on(t, "two", lambda _: _patch({"op": "add", "path": "/data/two", "value": "2"}))
        _asked(t, "one").clear()
        t.call("POST", MAPS, config_map("m", a="0"))
        t.note(calls=[len(_asked(t, name)) for name in ("one", "two")])
        t.managers(MAPS + "/m")
        t.call("PATCH", MAPS + "/m?fieldManager=x", config_map("m", b="5"), APPLY)
        t.managers(MAPS + "/m")
        no_patch = {"allowed": True, "patch": "W10="}
        for out in (
            no_patch,
            {**no_patch, "patchType": "Other"},
            {**_patch({"op": "add", "path": "/data/x", "value": "y"}), "patchType": "Other"},
            _patch({"op": "replace", "path": "/metadata/name", "value": "other"}),
            _patch({"op": "add", "path": "/spec", "value": {"x": 1}}),
            _patch({"op": "add", "path": "/metadata/labels", "value": {"bad key": "x"}}),
            {"allowed": False, "status": {"reason": "Forbidden", "message": "not you"}},
        ):
            _on(t, "two", lambda _, out=out: out)
            status, answer = t.raw("POST", MAPS + "?dryRun=All", config_map("z", a="0"))
            t.note(out=str(out)[:70], status=status, reason=answer.get("reason"), message=_said(answer))
        for out in (
            _patch({"op": "remove", "path": "/data/none"}),
            _patch({"op": "test", "path": "/data/a", "value": "zzz"}),
            {"allowed": True, "patchType": "JSONPatch", "patch": base64.b64encode(b"{").decode()},
        ):
            _on(t, "two", lambda _, out=out: out)
            status, answer = t.raw("POST", MAPS + "?dryRun=All", config_map("z", a="0"))
            t.note(out=str(out)[:70], status=status, reason=answer.get("reason"))


def hook_configurations(t: Transcript) -> None:
    fine = {"name": "a", "expression": "true"}
    for change in (
        {"sideEffects": "Some"},
        {"admissionReviewVersions": []},
        {"admissionReviewVersions": ["v2"]},
        {"timeoutSeconds": 31},
        {"failurePolicy": "Maybe"},
        {"matchPolicy": "No"},
        {"name": "short"},
        {"clientConfig": {}},
        {"clientConfig": {"url": "http://x/"}},
        {"clientConfig": {"url": "https://x/?a=b"}},
        {"rules": [{**RULE, "operations": []}]},
        {"rules": [{**RULE, "operations": ["MAKE"]}]},
        {"rules": [{**RULE, "resources": ["*", "pods"]}]},
        {"rules": [{**RULE, "scope": "Some"}]},
        {"matchConditions": [{"name": "a", "expression": "1"}]},
        {"matchConditions": [fine, fine]},
        {"objectSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}},
    ):
        wanted = {"metadata": {"name": f"{t.ns}-x"}, "webhooks": [_hook(t, "x", **change)]}
        status, out = t.raw("POST", f"{ADMISSION}{VALIDATING}?dryRun=All", wanted)
        causes = sorted([c["field"], c["reason"]] for c in (out.get("details") or {}).get("causes") or ())
        t.note(change=change, status=status, causes=causes)


SCENARIOS = (hook_answers, hook_reviews, hook_failures, hook_matches, hook_patches, hook_configurations)
