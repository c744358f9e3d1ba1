"""Any history of writes, kills, other mounts and other hands on real groups: in the end everybody has what is theirs (BEY-JRN-01)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import modelledhistories
from tests.support.histories import in_process

#: Histories that are played; nightly 10,000, which takes about half an hour.
COUNT = int(os.environ.get("KOORD_HISTORIES") or (10_000 if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else 60))


@pytest.mark.root
@pytest.mark.feature("BEY-JRN-01")
@pytest.mark.timeout(max(120, COUNT))
@pytest.mark.skipif(os.geteuid() != 0 or not Path("/sys/fs/cgroup/memory").is_dir(), reason="needs root and cgroup v1")
def test_after_any_history_everybody_has_what_is_theirs() -> None:
    result = in_process(COUNT)
    assert result["wrong"] == []
    done = result["done"]
    assert isinstance(done, dict)
    assert done["histories"] == COUNT
    assert min(done[what] for what in ("write", "resize", "end", "recreate", "restored", "writes_and_is_killed", "restore_is_killed")) > 0


@pytest.mark.feature("BEY-JRN-01")
@pytest.mark.timeout(max(120, COUNT))
@pytest.mark.parametrize("version", [1, 2])
def test_after_any_history_on_a_modelled_kernel(version: int) -> None:
    """Without root, on cgroup v2 as well, and killed in exactly one change of a file."""
    result = modelledhistories.main(version, COUNT)
    assert result["wrong"] == []
    done = result["done"]
    assert isinstance(done, dict)
    assert min(done[what] for what in ("killed in a change", "resize", "recreate", "restored", "restore_is_killed")) > 0


@pytest.mark.feature("BEY-JRN-01")
def test_a_history_betrays_a_restore_that_overwrites_what_others_set(monkeypatch: pytest.MonkeyPatch) -> None:
    from roles.koordlet.actuation import restore

    old = restore.compared
    monkeypatch.setattr(restore, "compared", lambda undo, resource, before, ours, now: old(undo, resource, before, None, now))
    assert modelledhistories.main(2, 12)["wrong"]
