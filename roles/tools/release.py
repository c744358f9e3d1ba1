"""`make release IMAGE=HOST/REPOSITORY@sha256:…`: the manifests of a release, each workload's image by its digest.

Writes install.yaml and one file an overlay, the chart's values, and SHA256SUMS over all of them. Nothing is pushed or signed:
docs/host.md says how that is done.
"""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

import yaml

from koord.process.errors import ConfigurationError
from roles.tools import manifests

_IMAGE = re.compile(r"(?P<host>[a-z0-9.-]+(?::\d+)?)/(?P<repository>[a-z0-9._/-]+)@(?P<digest>sha256:[0-9a-f]{64})")
_NAME = "install.yaml"


def parsed(image: str) -> tuple[str, str, str]:
    """Host, repository and digest. Raises ConfigurationError for an image that is not named by its digest alone."""
    found = _IMAGE.fullmatch(image)
    if found is None:
        raise ConfigurationError(f"IMAGE: {image!r} is not HOST/REPOSITORY@sha256:DIGEST; a tag can be moved to another image")
    return found["host"], found["repository"], found["digest"]


def files(image: str) -> dict[str, str]:
    """Name and content of every file. Raises ConfigurationError."""
    host, repository, digest = parsed(image)
    found = {_NAME: manifests.text(manifests.rendered(image=image))}
    for name in (*manifests.OVERLAYS, *manifests.OPTIONAL):
        found[f"install-{name}.yaml"] = manifests.text(manifests.rendered(image=image, overlays=(name,)))
    values = {"imageRepositoryHost": host, "image": {"repository": repository, "digest": digest}}
    found["values.yaml"] = "# helm install koord koord-VERSION.tgz --values=values.yaml\n" + yaml.safe_dump(values, sort_keys=False)
    return found


def write(image: str, directory: Path) -> list[Path]:
    """Write them with their checksums. Raises ConfigurationError."""
    found = files(image)
    directory.mkdir(parents=True, exist_ok=True)
    sums = "".join(f"{hashlib.sha256(text.encode()).hexdigest()}  {name}\n" for name, text in sorted(found.items()))
    written = []
    for name, text in {**found, "SHA256SUMS": sums}.items():
        path = directory / name
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


if __name__ == "__main__":
    try:
        for path in write(sys.argv[1], Path(sys.argv[2])):
            print(path)
    except ConfigurationError as error:
        sys.exit(f"release: error: {error}")
