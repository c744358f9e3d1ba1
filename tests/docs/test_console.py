"""How sessions of the documentation are compared with what is printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.console import Shown, difference, sessions


@pytest.mark.parametrize(
    ("shown", "printed", "missing"),
    [
        ("NAME AGE\nsim-000 1m40s", "NAME      AGE\nsim-000   99s", ""),
        ("cpu: 4974 (the pod requests 5k)", "cpu: 4973.5 (the pod requests 5k)", ""),
        ("a 1\n…\nc 3", "a 2\nb\nb\nc 4", ""),
        ("a 1\nc 3", "a 2\nb\nc 4", "c 3"),
        ("a 1", "a 2\nb", "(the page ends before 'b')"),
        ("a 1\n…", "a one\nb", "a 1"),
        ("…\nis pending: quota", "is pending: no node", "is pending: quota"),
    ],
)
def test_amounts_may_differ_and_words_may_not(shown: str, printed: str, missing: str) -> None:
    assert difference(tuple(shown.split("\n")), printed.split("\n")) == missing


def test_a_block_is_cut_into_its_commands(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Text\n\n```console\n$ a --b\none\n\ntwo\n$ c\n```\n```sh\n$ not this\n```\n")
    assert list(sessions(page)) == [Shown("page.md", "a --b", ("one", "", "two")), Shown("page.md", "c", ())]
