"""Log lines of a real process."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

PREAMBLE = """import logging
from koord.process import logs
from koord.process.logs import LogOptions
log = logging.getLogger("koord.kube.reflector")
"""


def lines(code: str) -> list[str]:
    text = PREAMBLE + code
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stderr.splitlines()


def test_text() -> None:
    out = lines("logs.setup()\nlog.info('hello %d', 5, extra={'pod': 'a/b'})\nlog.warning('two\\nlines')\nlog.debug('hidden')")
    assert re.fullmatch(r'I\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ <string>:6\] hello 5 pod="a/b"', out[0])
    assert out[1].startswith("W")
    assert out[2] == "    lines"
    assert len(out) == 3


def test_json() -> None:
    out = lines("logs.setup('json', 4)\nlog.debug('x', extra={'n': {1: 2}})\ntry: 1/0\nexcept Exception: log.exception('bad')")
    first, second = map(json.loads, out)
    assert (first["msg"], first["level"], first["n"], first["logger"]) == ("x", "debug", {"1": 2}, "koord.kube.reflector")
    assert second["err"] == "division by zero"
    assert "ZeroDivisionError" in second["stacktrace"]


def test_verbosity_and_vmodule() -> None:
    assert len(lines("logs.setup(verbosity=6)\nlog.log(logs.TRACE, 'deep')")) == 1
    code = "logs.setup(options=LogOptions(vmodule=(('koord.kube.*', 4),)))\nlog.debug('yes')\nlogging.getLogger('other').debug('no')"
    assert [line.split("] ")[1] for line in lines(code)] == ["yes"]


def test_file_with_threshold(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    code = f"logs.setup(options=LogOptions(to_stderr=False, file={str(path)!r}, skip_headers=True))\nlog.info('one')\nlog.error('two')"
    assert lines(code) == ["two"]
    assert path.read_text() == "one\ntwo\n"
