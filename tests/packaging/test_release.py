"""The manifests of a release: every image by digest, pulled as said, nothing written below the root."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from koord.process.errors import ConfigurationError
from roles.tools import manifests, release
from tests.support.processes import ROOT

pytestmark = pytest.mark.feature("BEY-SEC-01")
DIGEST = "sha256:" + "0123456789abcdef" * 4
IMAGE = f"registry.example.com/team/koord@{DIGEST}"


def containers(objects: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Every container of every workload, init containers too."""
    for document in objects:
        pod = ((document.get("spec") or {}).get("template") or {}).get("spec") or {}
        for kind in ("initContainers", "containers", "ephemeralContainers"):
            yield from pod.get(kind) or ()


def test_every_image_is_named_by_its_digest(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "roles.tools.release", IMAGE, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    names = {Path(line).name for line in done.stdout.splitlines()}
    assert names == {
        "install.yaml",
        "values.yaml",
        "SHA256SUMS",
        *(f"install-{name}.yaml" for name in (*manifests.OVERLAYS, *manifests.OPTIONAL)),
    }
    for file in tmp_path.glob("install*.yaml"):
        found = list(containers([d for d in yaml.load_all(file.read_text(), yaml.CSafeLoader) if d]))
        assert len(found) >= 4, file.name
        for container in found:
            assert container["image"] == IMAGE, file.name
            assert container["imagePullPolicy"] == "IfNotPresent"
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert not container["securityContext"].get("privileged")
    checked = subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout
    (tmp_path / "install.yaml").write_text("changed")
    assert subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=tmp_path, capture_output=True, check=False).returncode == 1


@pytest.mark.helm
def test_the_charts_values_of_a_release_name_the_same_image(tmp_path: Path) -> None:
    release.write(IMAGE, tmp_path)
    command = ["helm", "template", "koord", str(ROOT / "configs/chart/koord"), "--kube-version=1.31.0", f"--values={tmp_path}/values.yaml"]
    done = subprocess.run([*command, "--set=scheduler.image.tag=v9"], capture_output=True, text=True, check=True)
    found = list(containers([d for d in yaml.safe_load_all(done.stdout) if d]))
    assert len(found) == 5, "the Job that runs before an uninstall, too"
    assert {container["image"] for container in found} == {IMAGE}
    assert {container["imagePullPolicy"] for container in found} == {"IfNotPresent"}


@pytest.mark.parametrize("image", ["koord", "r.example.com/koord:v1", f"r.example.com/koord:v1@{DIGEST}", "r.example.com/koord@sha256:12"])
def test_an_image_that_can_be_moved_is_refused(image: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is not HOST/REPOSITORY@sha256:DIGEST"):
        release.write(image, tmp_path)
    assert not list(tmp_path.iterdir())
