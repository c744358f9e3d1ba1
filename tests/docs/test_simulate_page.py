"""The example of docs/simulate.md, run as it stands there (BEY-SIM-01)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from koord.cli import main
from tests.support.docs import ROOT

PAGE = (ROOT / "docs" / "simulate.md").read_text()


@pytest.mark.feature("BEY-SIM-01")
def test_the_example_says_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in re.findall(r"```yaml\n# (\S+)\n(.*?)```", PAGE, re.DOTALL):
        Path(name).write_text(text)
    ((line, shown),) = re.findall(r"```console\n\$ koord (.*?)\n(.*?)```", PAGE, re.DOTALL)
    result = CliRunner().invoke(main, line.split())
    assert (result.exit_code, result.output) == (2, shown)
