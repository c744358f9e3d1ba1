"""The examples of docs/replay.md, run as they stand there (BEY-REPLAY-01)."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from koord.cli import main
from tests.support.docs import ROOT

PAGE = (ROOT / "docs" / "replay.md").read_text()


@pytest.mark.feature("BEY-REPLAY-01")
def test_the_examples_say_what_the_page_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    shown = re.findall(r"```console\n\$ koord (.*?)\n(.*?)```", PAGE, re.DOTALL)
    assert len(shown) == 4
    for line, text in shown:
        result = CliRunner().invoke(main, line.split())
        assert (result.exit_code, result.output) == (2 if "--with" in line else 0, text)
