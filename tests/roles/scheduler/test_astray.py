"""Random histories in which the scheduler's writes go astray, and one with a planted defect that they betray."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
NOTHING_IS_GIVEN_BACK = """
from roles.scheduler.cluster.cache import Cache
from tests.support import astray
Cache.forget = lambda self, uid: False
raise SystemExit(astray.main(2, 1))
"""


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A process of its own: histories are forked, and a test process has threads."""
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)


@pytest.mark.feature("SCH-FW-06")
@pytest.mark.timeout(300)
def test_whatever_becomes_of_its_writes_the_books_are_right() -> None:
    done = python("-m", "tests.support.astray", "0", "4")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr[-2000:]


@pytest.mark.timeout(300)
def test_what_is_not_given_back_is_seen() -> None:
    done = python("-c", NOTHING_IS_GIVEN_BACK)
    assert done.returncode == 1, done.stderr[-2000:]
    # room that stays taken is told by the amounts, or by what another scheduler binds there
    assert "counted afresh" in done.stdout or "who has just begun binds" in done.stdout, done.stdout + done.stderr[-2000:]
