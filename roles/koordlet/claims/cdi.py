"""The Container Device Interface: files by which a container runtime knows what a container with a device is given.

The vendors' tools describe their devices (``nvidia-ctk cdi generate``); koordlet describes RDMA cards, which nobody else does.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import orjson

from koord.api.deviceslices import DRIVER
from roles.koordlet.host.root import HostRoot

Obj = dict[str, Any]

KIND = f"{DRIVER}/device"
FILE = f"{DRIVER}-device.json"
#: Below the kubelet's directory: where it finds the plugin.
SOCKET = f"plugins_registry/{DRIVER}-reg.sock"
_VERSION = "0.3.0"
_MAX_BYTES = 8 << 20


def directories(root: HostRoot) -> tuple[str, str]:
    """Where runtimes look, the later before the earlier: what people put there, and what programs make at run time."""
    return root.path("etc/cdi"), root.var_run_path("cdi")


def own_file(root: HostRoot) -> str:
    """What koordlet writes."""
    return os.path.join(directories(root)[1], FILE)


def document(nodes: Mapping[str, Iterable[str]]) -> str:
    """koordlet's own file: device files by device. The runtime looks their numbers up on the machine."""
    devices = [
        {"name": name, "containerEdits": {"deviceNodes": [{"path": path} for path in paths]}} for name, paths in sorted(nodes.items())
    ]
    return orjson.dumps({"cdiVersion": _VERSION, "kind": KIND, "devices": devices}).decode()


def read(places: Iterable[str], complain: Callable[[str], None]) -> dict[str, str]:
    """Devices that others describe, by name, in CDI's words (``nvidia.com/gpu=GPU-…``). A file that cannot be read is complained about
    and left out; of several kinds that have the name the shortest counts, which is the vendor's own."""
    found: dict[str, str] = {}
    for directory in places:
        try:
            names = sorted(os.listdir(directory))
        except FileNotFoundError:
            continue
        except OSError as error:
            complain(f"{directory} cannot be listed: {error.strerror}")
            continue
        for name in names:
            if name == FILE or not name.endswith((".json", ".yaml", ".yml")):
                continue
            path = os.path.join(directory, name)
            try:
                if not stat.S_ISREG(os.stat(path).st_mode):
                    raise ValueError("it is no regular file")  # a pipe would never end
                kind, devices = _file(path)
            except (OSError, ValueError) as error:
                complain(f"{path} is no CDI specification: {getattr(error, 'strerror', None) or error}")
                continue
            for device in devices:
                found[device] = min(filter(None, (found.get(device), f"{kind}={device}")), key=lambda words: (len(words), words))
    return found


def _file(path: str) -> tuple[str, list[str]]:
    """Kind and device names of one file. Raises OSError, ValueError."""
    with open(path, "rb") as file:
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise ValueError(f"it is larger than {_MAX_BYTES} bytes")
    if path.endswith(".json"):
        content = orjson.loads(data)
    else:
        import yaml

        from koord.config import plainyaml

        try:
            content = plainyaml.load(data)
        except yaml.YAMLError as error:
            raise ValueError(str(error).splitlines()[0]) from None
    kind = content.get("kind") if isinstance(content, dict) else None
    devices = content.get("devices") or [] if isinstance(content, dict) else None
    if not isinstance(kind, str) or not isinstance(devices, list) or not all(isinstance(one, dict) for one in devices):
        raise ValueError("an object with kind and devices is wanted")
    return kind, [str(one["name"]) for one in devices if one.get("name")]
