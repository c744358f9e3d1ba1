"""What the packaging tests share: one build of `make dist` a session, the API server out of it, and the image over it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging import image as images
from tests.support import patience
from tests.support.processes import ROOT, free_port, process


@pytest.fixture(scope="session")
def dist() -> Iterator[Path]:
    """A fresh build, where processes of other users can be started from it too; KOORD_DIST names one that is there already."""
    if given := os.environ.get("KOORD_DIST"):
        yield Path(given)
        return
    directory = Path(tempfile.mkdtemp(prefix="koord-dist-"))
    directory.chmod(0o755)
    environment = {**os.environ, "DIST": str(directory / "dist"), "BUILD": str(directory / "build")}
    built = subprocess.run([str(ROOT / "packaging" / "dist.sh")], env=environment, capture_output=True, text=True, check=False)
    if built.returncode == 3:
        pytest.skip(built.stderr.strip())
    assert built.returncode == 0, built.stderr[-2000:]
    shutil.rmtree(directory / "build")
    yield directory / "dist"
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def built(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[images.Built]:
    """The image over that build."""
    assert dist.name == "dist", "the Dockerfile's first stage leaves its build in /dist"
    with images.built(dist.parent, tmp_path_factory.mktemp("image")) as made:
        yield made


@pytest.fixture(scope="session")
def api(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The frozen API server with the CRDs installed; the path of its kubeconfig."""
    directory = tmp_path_factory.mktemp("api")
    kubeconfig = directory / "kubeconfig"
    arguments = ["apiserver", "--port", str(free_port()), "--data-dir", str(directory / "data"), "--print-kubeconfig", str(kubeconfig)]
    with process(*arguments, program=str(dist / "koord" / "koord")) as server:
        end = time.monotonic() + patience.seconds(40)
        while not kubeconfig.exists():
            assert server.poll() is None
            assert time.monotonic() < end
            time.sleep(0.05)
        subprocess.run([sys.executable, "-m", "tests.benchmarks.install_crds", str(kubeconfig)], check=True, cwd=ROOT)
        yield kubeconfig
