"""The example of docs/cost.md, run as it stands there (BEY-COST-01)."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from koord.cli import main
from tests.support.docs import ROOT

PAGE = (ROOT / "docs" / "cost.md").read_text()


@pytest.mark.feature("BEY-COST-01")
def test_the_example_says_what_the_page_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    ((text,),) = (re.findall(r"```yaml\n# prices.yaml\n(.*?)```", PAGE, re.DOTALL),)
    assert (ROOT / "docs" / "cost" / "prices.yaml").read_text() == text
    ((line, shown),) = re.findall(r"```console\n\$ koord (.*?)\n(.*?)```", PAGE, re.DOTALL)
    result = CliRunner().invoke(main, line.split())
    assert (result.exit_code, result.output) == (0, shown)
