"""usage: python -m tests.benchmarks.install_crds KUBECONFIG   creates every CRD of configs/crds and the namespace koordinator-system."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import yaml

from koord.api import kinds
from koord.kube.client import Client
from koord.kube.config import load


async def main(kubeconfig: str) -> None:
    async with Client(load(kubeconfig)) as client:
        await client.create(kinds.NAMESPACES, {"metadata": {"name": "koordinator-system"}})
        for path in sorted(Path("configs/crds").glob("*.yaml")):
            await client.create(kinds.CUSTOMRESOURCEDEFINITIONS, yaml.safe_load(path.read_text(encoding="utf-8")))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
