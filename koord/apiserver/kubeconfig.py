"""The kubeconfig that leads to the embedded server."""

from __future__ import annotations

import base64
import os
import tempfile
from pathlib import Path

import orjson

from koord.apiserver.store import Obj


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
    descriptor, temporary = tempfile.mkstemp(prefix=".kubeconfig-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(orjson.dumps(config, option=orjson.OPT_INDENT_2) + b"\n")
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
