"""The entry point of the frozen executable, not frozen."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

import pytest

from tests.support.processes import ROOT


@pytest.fixture(name="entry")
def entry_fixture() -> Any:
    spec = importlib.util.spec_from_file_location("koord_entry", ROOT / "packaging" / "entry.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("before", "after"), [(None, None), ("/opt/mine/lib", "/opt/mine/lib"), ("", "")])
def test_the_library_path_of_the_bundle_is_not_inherited(entry: Any, monkeypatch: pytest.MonkeyPatch, before: str, after: str) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/koord/_internal")
    monkeypatch.delenv("LD_LIBRARY_PATH_ORIG", raising=False)
    if before is not None:
        monkeypatch.setenv("LD_LIBRARY_PATH_ORIG", before)
    entry.clean_library_path()
    assert os.environ.get("LD_LIBRARY_PATH") == after
    assert "LD_LIBRARY_PATH_ORIG" not in os.environ


def test_a_library_path_of_the_user_stays(entry: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/mine/lib")
    entry.clean_library_path()
    assert os.environ["LD_LIBRARY_PATH"] == "/opt/mine/lib"
