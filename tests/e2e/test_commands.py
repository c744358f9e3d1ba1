"""The commands of the pages for operators, typed against a sandbox: each answers, with the status that docs/cli.md tells."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys

import pytest

from tests.docs.test_blocks import PAGES, blocks
from tests.e2e.conftest import REPOSITORY, Running
from tests.support import patience

pytestmark = [pytest.mark.kubectl, pytest.mark.feature("BEY-SBX-01")]

#: What stands for something of the reader's own cluster, and what is there in this one.
OWN = {
    r"\bnode (NODE|NAME)\b": "node sim-000",
    r"\bn1\b": "sim-000",
    r"\bn2\b": "sim-001",
    r"why pod (NAMESPACE/(NAME|SERVICE|POD)|NAME)\b": "why pod batch/etl-000",
    r"why podgroup NAMESPACE/NAME": "why podgroup batch/none",
}
#: Names that only stand for an example: nothing is known of them here.
EXAMPLES = ("default/web-0", "team-x/", "batch/none")


def lines(pattern: str) -> list[str]:
    """Command lines of all pages, without comments, each once."""
    found = [re.split(r"\s+[#|]", line)[0].strip() for page in PAGES for why, lines in blocks(page) if not why for line in lines]
    for placeholder, own in OWN.items():
        found = [re.sub(placeholder, own, line) for line in found]
    return sorted({line for line in found if re.match(pattern, line)})


def command(cluster: Running, line: str) -> tuple[list[str], dict[str, str]]:
    return [sys.executable, "-m", "koord.cli", *shlex.split(line)[1:]], {**cluster.environment, "KUBECONFIG": str(cluster.kubeconfig)}


def test_koord_answers_every_line(cluster: Running) -> None:
    cluster.until(lambda: cluster.get("pod", "etl-000", "-n", "batch")["spec"].get("nodeName"), 40, "a placed batch pod")
    cluster.until(lambda: cluster.get("nodemetric", "sim-001").get("status", {}).get("updateTime"), 40, "a report")
    tried = 0
    for line in lines(r"koord (why|top|doctor)\b"):
        if "--watch" in line or "doctor --node" in line or line == "koord doctor":  # the machine is another test's
            continue
        tried += 1
        words, environment = command(cluster, f"{line} --cluster" if line.startswith("koord doctor") and "--cluster" not in line else line)
        limit = patience.seconds(60)
        done = subprocess.run(words, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=limit, check=False)
        assert "Traceback" not in done.stderr, line
        if any(example in line for example in EXAMPLES):
            assert (done.returncode, done.stdout) == (1, ""), line
            assert re.fullmatch(r"koord why \w+: error: nothing is known about .*; queried: .*\n", done.stderr), done.stderr
        else:
            assert (done.returncode, done.stderr) == (0, ""), f"{line}: {done.stdout}{done.stderr}"
            assert done.stdout
    assert tried >= 8


@pytest.mark.parametrize("line", ["koord top --watch", "koord ui", "koord why node sim-000 --watch"])
def test_what_goes_on_ends_at_ctrl_c(cluster: Running, line: str) -> None:
    words, environment = command(cluster, line)
    # who runs the tests in the background of a shell ignores the signal, and so would the command
    heeds = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from koord.cli import main; main()"
    words = [sys.executable, "-u", "-c", heeds, *words[3:]]
    with subprocess.Popen(words, cwd=REPOSITORY, env=environment, stdout=-1, stderr=-1, text=True) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline()
            running.send_signal(signal.SIGINT)
            _, said = running.communicate(timeout=patience.seconds(40))
        finally:
            running.kill()
    assert (running.returncode, said) == (130, "")


def test_kubectl_does_what_the_pages_say(cluster: Running) -> None:
    cluster.until(lambda: cluster.get("pods", "-n", "batch")["items"], 40, "a batch pod")
    tried = 0
    for line in lines(r"kubectl (get nodes,|create|-n batch get pod)"):
        tried += 1
        words = ["etl-000" if word == "NAME" else word for word in shlex.split(line)[1:]]
        assert cluster.try_kubectl(*words).returncode == 0, line
    assert tried >= 3
