"""usage: sbom.py LOCKFILE CONTENTS   prints a CycloneDX 1.5 document of what the frozen build contains.

CONTENTS lists the files that were packed, one a line. Each belongs to a Python distribution (by its RECORD), to a package of the system
(by dpkg, where there is one), to the interpreter, or to koord. Versions and licences are those of the installed metadata, hashes
those that the lock file accepts. The same input gives the same document.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any
from urllib.parse import quote

ROOT = Path(__file__).resolve().parent.parent
#: Part of every frozen program although none of its modules is listed: the bootloader.
BOOTLOADER = "pyinstaller"
Component = dict[str, Any]


def canonical(name: str) -> str:
    """A distribution's name as indexes spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def locked_hashes(lock: Path) -> dict[str, list[str]]:
    """SHA-256 digests of the files that the lock file accepts, by distribution."""
    out: dict[str, list[str]] = {}
    name = ""
    for line in lock.read_text(encoding="utf-8").splitlines():
        if found := re.match(r"([A-Za-z0-9._-]+)(?:\[.*\])?==", line):
            name = canonical(found.group(1))
        if found := re.search(r"--hash=sha256:([0-9a-f]{64})", line):
            out.setdefault(name, []).append(found.group(1))
    return out


def licences(distribution: Distribution) -> list[dict[str, Any]]:
    """What the metadata say, the most precise first: an SPDX expression, classifiers, free text."""
    metadata = distribution.metadata
    if expression := metadata.get("License-Expression"):
        return [{"expression": expression}]
    named = [c.rsplit(" :: ", 1)[-1] for c in metadata.get_all("Classifier") or () if c.startswith("License :: ") and c.count(" :: ") > 1]
    if not named and (text := (metadata.get("License") or "").strip()):
        named = [text.splitlines()[0][:80]]
    return [{"license": {"name": name}} for name in named]


def python_component(distribution: Distribution, hashes: dict[str, list[str]]) -> Component:
    name = canonical(distribution.metadata["Name"])
    reference = f"pkg:pypi/{name}@{distribution.version}"
    component: Component = {"type": "library", "bom-ref": reference, "name": name, "version": distribution.version, "purl": reference}
    if found := licences(distribution):
        component["licenses"] = found
    component["hashes"] = [{"alg": "SHA-256", "content": digest} for digest in sorted(hashes.get(name, ()))]
    return component


def system_components(files: Iterable[str]) -> list[Component]:
    """The packages of the system that shared libraries came from, as dpkg knows them."""
    if shutil.which("dpkg-query") is None:
        return []
    spellings = [(real, real.removeprefix("/usr")) for real in sorted({os.path.realpath(file) for file in files})]
    # all at once: each call reads the lists of all packages
    paths = [path for both in spellings for path in both]
    said = subprocess.run(["dpkg-query", "-S", *paths], capture_output=True, text=True, check=False).stdout if paths else ""
    owners: dict[str, str] = {}
    for line in said.splitlines():
        packages, _, path = line.partition(": ")
        if not packages.startswith("diversion by "):
            owners.setdefault(path, packages.split(",")[0])
    names = {owner for both in spellings if (owner := next(filter(None, map(owners.get, both)), None))}
    out = []
    for package in sorted(names):
        query = ["dpkg-query", "-W", "-f", "${Package} ${Version} ${Architecture}", package]
        name, version, architecture = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()
        reference = f"pkg:deb/debian/{name}@{quote(version, safe='')}?arch={architecture}"
        component: Component = {"type": "library", "bom-ref": reference, "name": name, "version": version, "purl": reference}
        if names_of := debian_licences(name):
            component["licenses"] = [{"license": {"name": licence}} for licence in names_of]
        out.append(component)
    return out


def debian_licences(package: str) -> list[str]:
    """The licences that a package's machine-readable copyright file names; none where it is prose."""
    file = Path("/usr/share/doc", package, "copyright")
    if not file.is_file():
        return []
    return sorted(set(re.findall(r"^License: *(\S.*?) *$", file.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)))


def interpreter() -> Component:
    version = platform.python_version()
    reference = f"pkg:generic/python@{version}"
    return {
        "type": "platform", "bom-ref": reference, "name": "python", "version": version, "purl": reference,
        "licenses": [{"license": {"id": "PSF-2.0"}}],
    }  # fmt: skip


def own() -> Component:
    sys.path.insert(0, str(ROOT))
    from koord.version import VERSION

    reference = f"pkg:generic/koord@{VERSION}"
    return {
        "type": "application", "bom-ref": reference, "name": "koord", "version": VERSION, "purl": reference,
        "licenses": [{"license": {"id": "Apache-2.0"}}],
    }  # fmt: skip


def timestamp() -> str | None:
    """When the source was made: SOURCE_DATE_EPOCH or the last commit."""
    seconds = os.environ.get("SOURCE_DATE_EPOCH", "")
    if not seconds and shutil.which("git"):
        done = subprocess.run(["git", "-C", str(ROOT), "log", "-1", "--format=%ct"], capture_output=True, text=True, check=False)
        seconds = done.stdout.strip()
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if seconds else None


def document(lock: Path, contents: Iterable[str]) -> dict[str, Any]:
    packed = {os.path.realpath(file) for file in contents}
    hashes = locked_hashes(lock)
    found: list[Component] = []
    for distribution in distributions():
        name = canonical(distribution.metadata["Name"])
        mine = {os.path.realpath(str(distribution.locate_file(f))) for f in distribution.files or ()} & packed
        packed -= mine
        if name != "koord" and (mine or name == BOOTLOADER):
            found.append(python_component(distribution, hashes))
    libraries = [f for f in packed if re.search(r"\.so(\.|$)", f) and not f.startswith((str(ROOT), os.path.realpath(sys.prefix)))]
    components = [interpreter(), *sorted(found, key=lambda c: str(c["name"])), *system_components(sorted(libraries))]
    main = own()
    body: dict[str, Any] = {
        "metadata": {"component": main, **({"timestamp": at} if (at := timestamp()) else {})},
        "components": components,
        "dependencies": [{"ref": main["bom-ref"], "dependsOn": [c["bom-ref"] for c in components]}],
    }
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(body, sort_keys=True))
    return {"bomFormat": "CycloneDX", "specVersion": "1.5", "serialNumber": f"urn:uuid:{serial}", "version": 1, **body}


if __name__ == "__main__":
    listing = Path(sys.argv[2]).read_text(encoding="utf-8").splitlines()
    json.dump(document(Path(sys.argv[1]), listing), sys.stdout, indent=1, sort_keys=True)
    print()
