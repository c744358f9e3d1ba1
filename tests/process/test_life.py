"""The life of real processes: signals, crashes, refusals, the five-second limit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from koord.process import tuning
from tests.support import patience

PREAMBLE = """
import asyncio, sys, time
from koord.process.life import run
from koord.process.errors import ConfigurationError, FatalError
from koord.config.errors import ConfigError
"""


def start(body: str) -> subprocess.Popen[str]:
    code = PREAMBLE + textwrap.dedent(body) + "\nsys.exit(run(main, name='koord role'))\n"
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str], timeout: float = 10.0) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=patience.seconds(timeout))
    return process.returncode, out, err


def ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order_with_status_0(number: int) -> None:
    process = start(
        """
        async def main(life):
            async def cleanup(): print("cleaned", flush=True)
            async def work():
                try: await asyncio.sleep(100)
                finally: print("cancelled", flush=True)
            life.on_stop(cleanup)
            life.spawn(work(), "work")
            print("ready", flush=True)
            await life.stopping.wait()
            print("stopping", flush=True)
        """
    )
    ready(process)
    os.kill(process.pid, number)
    assert finish(process)[:2] == (0, "stopping\ncancelled\ncleaned\n")


def test_a_main_that_does_not_end_is_cancelled() -> None:
    process = start(
        """
        async def main(life):
            print("ready", flush=True)
            await asyncio.sleep(100)
        """
    )
    ready(process)
    began = time.monotonic()
    process.terminate()
    assert finish(process)[0] == 0
    assert time.monotonic() - began < patience.seconds(5)


def test_whatever_hangs_it_is_gone_within_six_seconds() -> None:
    process = start(
        """
        async def main(life):
            print("ready", flush=True)
            await life.stopping.wait()
            time.sleep(600)
        """
    )
    ready(process)
    began = time.monotonic()
    process.terminate()
    code, _, err = finish(process)
    assert code == 1
    assert time.monotonic() - began < patience.seconds(6)
    assert "Timeout" in err  # says where it hung


def test_a_second_signal_ends_it_at_once() -> None:
    process = start(
        """
        async def main(life):
            print("ready", flush=True)
            await life.stopping.wait()
            print("stopping", flush=True)
            await asyncio.sleep(100)
        """
    )
    ready(process)
    process.terminate()
    assert process.stdout is not None
    assert process.stdout.readline() == "stopping\n"
    process.terminate()
    assert finish(process, 2.0)[0] == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ("raised", "line"),
    [
        ("ConfigurationError('--addr: no')", "koord role: error: --addr: no"),
        ("ConfigError('profiles[0].x', 'must be a number')", "koord role: error: profiles[0].x: must be a number"),
        ("FatalError('lost lease')", "koord role: error: lost lease"),
    ],
)
def test_refusals_are_one_line_and_status_1(raised: str, line: str) -> None:
    process = start(f"async def main(life): raise {raised}")
    assert finish(process) == (1, "", line + "\n")


def test_an_unexpected_error_is_status_1_with_its_traceback() -> None:
    code, _, err = finish(start("async def main(life): 1 / 0"))
    assert code == 1
    assert "ZeroDivisionError" in err


def test_a_crashed_task_ends_the_process_unless_it_restarts() -> None:
    body = """
        async def crash(): raise RuntimeError("boom")
        async def main(life):
            life.spawn({work}, "worker", restart={restart})
            await asyncio.wait_for(life.stopping.wait(), patience.seconds(3))
        """
    code, _, err = finish(start(body.format(work="crash()", restart=False)))
    assert code == 1
    assert "task worker failed: RuntimeError: boom" in err
    process = start(
        """
        from koord.process import life as module
        module.RESTART_PAUSE = (0.01, 0.02)
        tries = []
        async def flaky():
            tries.append(1)
            if len(tries) < 3: raise RuntimeError("boom")
        async def main(life):
            await life.spawn(flaky, "worker", restart=True)
            print(len(tries))
        """
    )
    assert finish(process)[:2] == (0, "3\n")


def test_main_may_end_by_itself_or_fail_by_name() -> None:
    assert finish(start("async def main(life): life.stop()"))[0] == 0
    code, _, err = finish(start("async def main(life): life.fail('lost lease')"))
    assert code == 1
    assert "lost lease" in err


def test_runs_on_uvloop_with_a_relaxed_collector_and_one_numeric_thread() -> None:
    process = start(
        """
        async def main(life):
            import gc, os
            print(type(asyncio.get_running_loop()).__module__, gc.get_threshold()[0], os.environ["OPENBLAS_NUM_THREADS"])
        """
    )
    assert finish(process)[:2] == (0, f"uvloop {tuning.GC_THRESHOLDS[0]} 1\n")


def test_the_end_does_not_look_through_the_caches_once_more() -> None:
    process = start(
        """
        import os
        class Cache:
            def __del__(self): os.write(1, b"looked at")
        cache = Cache()
        cache.itself = cache
        async def main(life): life.stop()
        """
    )
    assert finish(process)[:2] == (0, "")


def test_tuning() -> None:
    code = "import gc; from koord.process import tuning as t; t.freeze(); print(t.keep_memory(), gc.get_freeze_count() > 0)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "True True\n"


PHASES = """
        from koord.process.life import Phase
        async def main(life):
            def step(word, seconds=0.0):
                async def cleanup():
                    print(word, life.ready(), flush=True)
                    await asyncio.sleep(seconds)
                    if seconds: print(word, "ends", flush=True)
                return cleanup
            async def work():
                try: await asyncio.sleep(100)
                finally: print("task", flush=True)
            life.on_stop(step("client"))
            life.on_stop(step("events"), phase=Phase.EVENTS)
            life.on_stop(step("lease"), phase=Phase.LEASE)
            life.on_stop(step("controllers"), phase=Phase.WORK)
            life.on_stop(step("informers"))
            life.on_stop(step("webhooks", 1.0), phase=Phase.LAME_DUCK, seconds={limit})
            life.spawn(work(), "work")
            print("ready", life.ready(), flush=True)
            await life.stopping.wait()
            print("main", flush=True)
        """


def test_the_end_has_an_order_and_a_lame_duck_outlives_all_but_the_last() -> None:
    process = start(PHASES.format(limit=3.0))
    assert process.stdout is not None
    assert process.stdout.readline() == "ready (True, '')\n"
    process.terminate()
    code, out, _ = finish(process)
    no = "(False, 'ending')"
    expected = ["main", f"webhooks {no}", "task", f"controllers {no}", f"lease {no}", f"events {no}", "webhooks ends", f"informers {no}"]
    assert code == 0
    assert out.splitlines() == [*expected, f"client {no}"]


def test_a_lame_duck_has_its_own_seconds_and_no_more() -> None:
    process = start(PHASES.format(limit=0.5))
    assert process.stdout is not None
    process.stdout.readline()
    process.terminate()
    code, out, err = finish(process)
    assert code == 0
    assert "webhooks ends" not in out
    assert out.splitlines()[-1].startswith("client")
    assert "took longer" in err


def test_a_lame_duck_may_last_longer_than_the_grace_period() -> None:
    process = start(PHASES.replace('"webhooks", 1.0', '"webhooks", 5.5').format(limit=6.0))
    assert process.stdout is not None
    process.stdout.readline()
    process.terminate()
    code, out, _ = finish(process, 12.0)
    assert code == 0
    assert "webhooks ends" in out
