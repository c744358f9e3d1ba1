"""Which edit of slo-controller-config is on its way, kept in a ConfigMap of our own, so that the next leader goes on at the same pace."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson

from koord import seams
from koord.api.kinds import CONFIGMAPS
from koord.kube.errors import ApiError, NotFound
from roles.manager.controllers.writer import NotLeading, Writer

log = logging.getLogger("koord.manager")

NAME = "koord-manager-config-spread"
_KEY, _VERSION = "state", 1
_TRIES, _PAUSE = 3, 1.0  # s; who takes the lead does not wait for ever for what only bounds a pace

Texts = Mapping[str, str]
"""What the keys of slo-controller-config say."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """The configuration that nodes are brought to, and those that may still count for some of them, the oldest first."""

    present: Texts
    former: Sequence[Texts] = ()


class EditMemory:
    """Reads and writes the ConfigMap. What cannot be kept is told once: then a restart lets all nodes follow at once."""

    def __init__(self, writer: Writer, namespace: str) -> None:
        self._writer, self._namespace = writer, namespace
        self._kept: Remembered | None = None
        self._told = False

    async def load(self) -> Remembered | None:
        """What the leader before has left; None for nothing that can be read."""
        for _ in range(_TRIES):
            try:
                found = await self._writer.client.get(CONFIGMAPS, NAME, self._namespace)
            except NotFound:
                return None
            except ApiError as error:
                log.warning("ConfigMap %s/%s: %s", self._namespace, NAME, error)
                await seams.sleep(_PAUSE)
                continue
            self._kept = _read((found.get("data") or {}).get(_KEY))
            return self._kept
        return None

    async def keep(self, state: Remembered) -> None:
        """Write it down, unless it is what stands there."""
        if state == self._kept:
            return
        body = {"data": {_KEY: orjson.dumps({"version": _VERSION, "present": state.present, "former": state.former}).decode()}}
        try:
            try:
                await self._writer.patch(CONFIGMAPS, NAME, body, self._namespace)
            except NotFound:
                meta = {"name": NAME, "namespace": self._namespace}
                await self._writer.create(CONFIGMAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, **body}, self._namespace)
        except NotLeading:
            return
        except ApiError as error:
            if not self._told:
                log.warning("ConfigMap %s/%s: %s; a restart would let all nodes follow an edit at once", self._namespace, NAME, error)
            self._told = True
            return
        self._kept, self._told = state, False


def _read(text: object) -> Remembered | None:
    try:
        found = orjson.loads(str(text))
        if found["version"] != _VERSION:
            return None
        present, former = found["present"], found["former"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None
    if not isinstance(former, list) or not all(map(_is_texts, (present, *former))):
        return None
    return Remembered(present, former)


def _is_texts(found: object) -> bool:
    return isinstance(found, dict) and all(isinstance(text, str) for text in found.values())
