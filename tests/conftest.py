"""Settings of the whole suite: hypothesis profiles and what a test may need of the machine."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

# What gates a change must not depend on luck: the default profile tries the same examples each time; `make fuzz` looks for new ones.
settings.register_profile("default", max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("nightly", max_examples=20_000, deadline=None, suppress_health_check=list(HealthCheck))
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def _missing(marker: str) -> str | None:
    """Why this machine cannot run tests with `marker`, or None."""
    if marker == "root":
        if os.geteuid() != 0:
            return "needs root"
        if not os.access("/sys/fs/cgroup/cpu/cpu.shares", os.W_OK) and not Path("/sys/fs/cgroup/cpu/tasks").exists():
            return "needs writable cgroup v1 controllers"
    if marker == "kubectl" and shutil.which("kubectl") is None:
        return "needs kubectl on PATH"
    if marker == "helm" and shutil.which("helm") is None:
        return "needs helm on PATH"
    if marker == "realapi" and not os.environ.get("KOORD_REAL_APISERVER"):
        return "needs a kube-apiserver binary in KOORD_REAL_APISERVER"
    if marker == "cri" and (os.geteuid() != 0 or shutil.which("containerd") is None):
        return "needs root and containerd on PATH"
    if marker == "vm" and shutil.which("qemu-system-x86_64") is None:
        return "needs qemu-system-x86_64 on PATH"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for marker in ("root", "kubectl", "helm", "realapi", "cri", "vm"):
            if item.get_closest_marker(marker) and (reason := _missing(marker)):
                item.add_marker(pytest.mark.skip(reason=reason))


class _ByFile(LoadScopeScheduling):
    """A file's tests run in one worker, because they share servers; so do all tests of the packages, because they share one build."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        return "tests/packaging" if file.startswith("tests/packaging/") else file


@pytest.hookimpl(optionalhook=True)  # unknown to pytest where xdist is switched off
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return _ByFile(config, log)
