"""The example of docs/policy-tests.md, run as it stands there (BEY-POL-01)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from koord.cli import main
from tests.support.docs import ROOT

PAGE = (ROOT / "docs" / "policy-tests.md").read_text()


@pytest.mark.feature("BEY-POL-01")
def test_the_example_says_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nodes.yaml").write_text((ROOT / "docs" / "policies" / "nodes.yaml").read_text())
    ((name, text),) = re.findall(r"```yaml\n# (\S+)\n(.*?)```", PAGE, re.DOTALL)
    Path(name).write_text(text)
    ((line, shown),) = re.findall(r"```console\n\$ koord (.*?)\n(.*?)```", PAGE, re.DOTALL)
    result = CliRunner().invoke(main, line.split())
    assert result.output == shown
    assert result.exit_code == (1 if "FAIL" in shown else 0)
