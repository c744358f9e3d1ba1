"""The part of the client that webhook handlers may use: reading."""

from __future__ import annotations

from typing import Any, Protocol

from koord.api.kinds import Kind


class Reader(Protocol):
    """`koord.kube.client.Client` fits."""

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> dict[str, Any]: ...
