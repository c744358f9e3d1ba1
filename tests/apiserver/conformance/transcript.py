"""A client that writes down what a server answers, without what differs from run to run."""

from __future__ import annotations

import json
import re
import time
import uuid
from typing import Any

import requests

from tests.support import patience

MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
# words that changed between versions of Kubernetes, and numbers of one run
_VARIANTS = (
    (re.compile(r" limit of \S+?(?=$|[],])"), " limit"),
    (re.compile(r"map\[string\](string|interface \{\})\{"), "{"),
    (re.compile(r"^FieldValueTypeInvalid$"), "FieldValueInvalid"),
    (re.compile(r"\(\d+\)"), "(n)"),
    (re.compile(r"/registry/\S+"), "/registry/…"),
    # an object as a whole, with the names and versions of one run
    (re.compile(r'Invalid value: "(\{.*\}|map\[.*\])": '), 'Invalid value: "…": '),
)
# what depends on the version of Kubernetes, or says nothing
_DROPPED = {"managedFields", "selfLink", "ipFamilies", "ipFamilyPolicy", "clusterIPs", "storageVersionHash"}


class Target:
    """One API server."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self.session = requests.Session()
        self.session.trust_env = False
        self.session.verify = False
        self.session.headers["Authorization"] = f"Bearer {token}"


class Transcript:
    """Calls in a namespace of its own; `lines` is what the test compares."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.ns = "c" + uuid.uuid4().hex[:8]
        self.lines: list[Any] = []
        self.warnings: list[str] = []  # of the last call
        self.raw("POST", "/api/v1/namespaces", {"metadata": {"name": self.ns}})

    def close(self) -> None:
        self.raw("DELETE", f"/api/v1/namespaces/{self.ns}", {})

    def raw(self, method: str, path: str, body: Any = None, kind: str = "application/json", accept: str = "") -> tuple[int, Any]:
        """A call that is not written down."""
        headers = {"Content-Type": kind} if body is not None else {}
        if accept:
            headers["Accept"] = accept
        data = None if body is None else body if isinstance(body, (str, bytes)) else json.dumps(body)
        path = path.replace("{ns}", self.ns)
        answer = self.target.session.request(method, self.target.url + path, data=data, headers=headers, timeout=patience.seconds(30))
        self.warnings = re.findall(r'299 - "((?:[^"\\]|\\.)*)"', answer.headers.get("Warning", ""))
        try:
            return answer.status_code, answer.json()
        except ValueError:
            return answer.status_code, answer.text

    def call(self, method: str, path: str, body: Any = None, kind: str = "application/json", accept: str = "") -> Any:
        """A call whose answer is part of the transcript; returns the decoded body."""
        status, out = self.raw(method, path, body, kind, accept)
        line = {
            "request": f"{method} {path.split('?', maxsplit=1)[0]}".replace(self.ns, "{ns}"),
            "status": status,
            "answer": self.tidy(out),
        }
        if self.warnings:
            line["warnings"] = self.tidy(self.warnings)
        self.lines.append(line)
        return out

    def verdict(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        """A call of which only the outcome is written down where it fails: the words are those of a Go library."""
        status, out = self.raw(method, path, body, kind)
        answer = {"reason": out.get("reason"), "code": out.get("code")} if status >= 400 and isinstance(out, dict) else out
        if isinstance(answer, dict) and status >= 400 and out.get("details", {}).get("causes"):
            causes = [[c.get("field"), c.get("reason")] for c in out["details"]["causes"]]
            # "<nil>" is what a Go library calls the sum of other causes
            answer["causes"] = sorted(c for c in causes if c[0] != "<nil>")
        self.lines.append(
            {
                "request": f"{method} {path.split('?', maxsplit=1)[0]}".replace(self.ns, "{ns}"),
                "status": status,
                "answer": self.tidy(answer),
            }
        )
        return out

    def note(self, **values: Any) -> None:
        """Something that the scenario found out itself."""
        self.lines.append(self.tidy(values))

    def managers(self, path: str) -> None:
        """Who owns which fields of an object, as text: `tidy` would leave out the empty objects that fieldsV1 is made of."""
        found = self.raw("GET", path)[1]["metadata"].get("managedFields") or []
        shown = [[m["manager"], m["operation"], m.get("subresource", ""), json.dumps(m["fieldsV1"], sort_keys=True)] for m in found]
        self.note(managers=sorted(shown))

    def watch(self, path: str, *, seconds: int = 1) -> list[Any]:
        """All events of a short watch, written down."""
        joint = "&" if "?" in path else "?"
        path = path.replace("{ns}", self.ns)
        answer = self.target.session.get(f"{self.target.url}{path}{joint}watch=1&timeoutSeconds={seconds}", timeout=patience.seconds(30))
        events = [json.loads(line) for line in answer.text.splitlines() if line]
        shown = [[e["type"], e["object"].get("metadata", {}).get("name"), e["object"].get("message")] for e in events]
        self.lines.append({"watch": path.split("?")[0].replace(self.ns, "{ns}"), "status": answer.status_code, "events": self.tidy(shown)})
        return events

    def tidy(self, value: Any) -> Any:
        """Without names, versions and times of this run."""
        if isinstance(value, dict):
            out = {k: self.tidy(v) for k, v in value.items() if k not in _DROPPED}
            for key in ("resourceVersion", "continue"):
                if out.get(key):
                    out[key] = "*"
            labels = out.get("labels")
            if isinstance(labels, dict) and "kubernetes.io/metadata.name" in labels:
                del labels["kubernetes.io/metadata.name"]
                if not labels:
                    del out["labels"]
            # empty and null members come and go with the Go types
            if isinstance(out.get("causes"), list):
                # some field errors come twice
                out["causes"] = [c for i, c in enumerate(out["causes"]) if c not in out["causes"][:i]]
            return {k: v for k, v in sorted(out.items()) if v is not None and v not in ({}, []) and not (k == "continue" and not v)}
        if isinstance(value, list):
            return [self.tidy(v) for v in value]
        if isinstance(value, str):
            text = _TIME.sub("<time>", _UUID.sub("<uid>", value.replace(self.ns, "{ns}")))
            for pattern, plain in _VARIANTS:
                text = pattern.sub(plain, text)
            return text
        return value


def settle() -> None:
    """Let a watch cache catch up."""
    time.sleep(0.15)
