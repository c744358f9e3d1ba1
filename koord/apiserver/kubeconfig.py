"""The kubeconfig that leads to the embedded server."""

from __future__ import annotations

import base64
from pathlib import Path

import orjson

from koord.apiserver.store import Obj
from koord.process import certificates


def build(url: str, token: str = "", ca: bytes = b"", name: str = "koord") -> Obj:
    """A kubeconfig with one cluster, one user and one context, all called `name`."""
    cluster: Obj = {"server": url}
    if ca:
        cluster["certificate-authority-data"] = base64.b64encode(ca).decode()
    user: Obj = {"token": token} if token else {}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
    }


def write(path: Path, config: Obj) -> None:
    """Write the file in one step, readable by its owner only. JSON is YAML, so every client reads it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    certificates.write(path, orjson.dumps(config, option=orjson.OPT_INDENT_2) + b"\n")
