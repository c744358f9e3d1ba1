"""What `koord sandbox up`, `demo` and `clean` do: set up, run, and put everything back whatever happens."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from koord.config.errors import InvalidConfig
from roles.sandbox import localnode, mounts, others, scenario, sizing, state
from roles.sandbox.polling import FRAME_SECONDS
from roles.sandbox.process_kubelet.layout import LayoutError
from roles.sandbox.session import Session, Settings
from roles.sandbox.watchdog import guarded

if TYPE_CHECKING:
    from koord.process.life import Life
    from roles.sandbox.compose import Sandbox
    from roles.sandbox.demo import Demo

log = logging.getLogger(__name__)


Body = Callable[["Sandbox", "Life", Session], Awaitable[None]]


def up(settings: Settings) -> int:
    """Run until a signal. Returns the exit code."""
    try:
        chosen = _scenario(settings)
    except InvalidConfig as error:
        return _complain(str(error))
    if settings.scenario is None:
        chosen = chosen.model_copy(update={"activity": True})
    return hosted(settings, chosen, _stay)


def demo(settings: Settings, out: Path, duration: float | None) -> int:
    """Run the phases and write the report. Returns the exit code: 0 when every phase was told, measured or calculated.

    With `settings.force` only what is measured counts.
    """
    try:
        chosen = _scenario(settings)
        out.mkdir(parents=True, exist_ok=True)
    except InvalidConfig as error:
        return _complain(str(error))
    except OSError as error:
        return _complain(f"{out}: {error.strerror}")
    if duration is not None:
        chosen = chosen.stretched(duration)

    def body(run_id: str) -> int:
        from roles.sandbox.demo import Demo

        show = Demo()
        code, session = _session(settings, chosen, show.run, run_id)
        if session is None:
            return code
        why = session.without or "; ".join(session.errors)
        if code != 0 and not why:
            why = "koord could not be started here, the message above says why"
        if why and settings.force:
            code = _complain(why)
        elif why:
            show.calculate(chosen, why)
            if not session.cut:
                code = 0 if show.ran and session.restored is not False else 1
        for line in show.verdict(session):
            print(line)
        return _written(lambda: show.write(out, session), out, code)

    return _guarded(body)


def hotspot(settings: Settings, out: Path, seconds: float) -> int:
    """Run the scenario "hot spot" and write its report. Returns the exit code: 0 when the hot nodes were relieved in time."""
    from roles.sandbox.hotspot import cluster

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return _complain(f"{out}: {error.strerror}")
    chosen = cluster.scenario(settings.nodes or cluster.DEFAULT_NODES)

    def body(run_id: str) -> int:
        from roles.sandbox.hotspot.show import HotSpot

        show = HotSpot(seconds)
        code, session = _session(settings, chosen, show.run, run_id)
        return _written(lambda: show.write(out, session), out, code) if session is not None and show.ran else code

    return _guarded(body)


def phases(settings: Settings, chosen: scenario.Scenario, told: Callable[[Demo, Session], None]) -> int:
    """Run a scenario's phases and, after everything has been restored, hand what was measured to ``told``. Returns the exit code."""

    def body(run_id: str) -> int:
        from roles.sandbox.demo import Demo

        show = Demo()
        code, session = _session(settings, chosen, show.run, run_id)
        if session is not None and show.ran:
            told(show, session)
        return code

    return _guarded(body)


def hosted(settings: Settings, chosen: scenario.Scenario, body: Body) -> int:
    """Run `body` inside a sandbox and restore everything in every case. Returns the exit code: 1 when it left errors in its session."""
    return _guarded(lambda run_id: _session(settings, chosen, body, run_id)[0])


def _guarded(body: Callable[[str], int]) -> int:
    """Clean up after dead runs, then run `body` with the id of a new one under a process that restores what `body` could not."""
    try:
        store = state.State()
    except (state.StateError, OSError) as error:
        return _complain(str(error))
    for run_id in store.clean(localnode.hierarchies())[0]:
        print(f"cleaned up after run {run_id}", flush=True)
    mine = state.new_id()

    def afterwards() -> None:
        if any(run.id == mine for run in store.runs()):
            store.clean(localnode.hierarchies())

    return guarded(lambda: body(mine), afterwards)


def clean() -> int:
    """Remove what dead runs left. Returns 0 when nothing of them is left."""
    try:
        store = state.State()
    except (state.StateError, OSError) as error:
        return _complain(str(error))
    found = localnode.hierarchies()
    cleaned, stuck = store.clean(found)
    for run_id in cleaned:
        print(f"run {run_id}: removed")
    for path in stuck:
        print(f"{path}: could not be removed", file=sys.stderr)
    if found is not None:
        for path in state.strangers(found, {run.id for run in store.runs()}):
            print(f"{path}: not registered here, left alone", file=sys.stderr)
    if not cleaned and not stuck:
        print("nothing to clean")
    return 1 if stuck else 0


def _written(write: Callable[[], Path], out: Path, code: int) -> int:
    """Write the report and say where it is. Returns `code`, or 1 where it could not be written (a full disk)."""
    try:
        path = write()
    except OSError as error:
        failed = _complain(f"no report: {error.filename or out}: {error.strerror}")
        return code or failed
    print(f"report: {path}", flush=True)
    return code


def _complain(text: str) -> int:
    print(f"koord sandbox: error: {text}", file=sys.stderr)
    return 1


def _scenario(settings: Settings) -> scenario.Scenario:
    chosen = scenario.load(settings.scenario)
    if settings.nodes is not None:
        chosen = chosen.model_copy(update={"nodes": chosen.nodes.model_copy(update={"count": settings.nodes})})
    update = {"plugin_paths": [*chosen.scheduler.plugin_paths, *settings.plugin_paths]}
    return chosen.model_copy(update={"scheduler": chosen.scheduler.model_copy(update=update)})


def _session(settings: Settings, chosen: scenario.Scenario, body: Body, run_id: str) -> tuple[int, Session | None]:
    """Register a run, prepare the machine, run `body` inside, and restore everything in every case."""
    store = state.State()
    run = state.Run.new(run_id)
    session = Session(settings, chosen, store, run, store.register(run), None, time.monotonic())
    for line in state.beside(store, run):
        print(line, flush=True)
    try:
        _prepare(session)
        code = _run(session, body)
    finally:
        _restore(session)
    if session.cut:
        return 128 + session.cut, session
    return (code if not session.errors else 1), session


def _prepare(session: Session) -> None:
    if not session.settings.local_node:
        session.without = "switched off by --no-local-node"
        return
    if why := localnode.impossible():  # before the machine is looked at: nobody is to wait for a quiet one in vain
        _without(session, why)
        return
    if session.settings.measuring:
        _look(session)
        if session.without:
            return
    try:
        session.local = localnode.prepare(session.run.id, session.scratch)
    except (LayoutError, OSError) as error:
        _without(session, str(error))


def _without(session: Session, why: str) -> None:
    session.without = why
    print(f"this machine is not used as a node: {why}; running the simulated part only", flush=True)


def _look(session: Session) -> None:
    """See how much of the machine is free, and fit the built-in scenario to it."""
    try:
        session.look = others.look()
    except OSError as error:
        log.info("how busy the machine is cannot be seen: %s", error)
        return
    why = session.look.why_not()
    if why and not session.settings.force:
        _without(session, why)
        return
    if session.settings.scenario is None:
        session.scenario = sizing.fitted(session.scenario, session.look.cpus, max(session.look.free, others.MOST_SHARE * session.look.cpus))
    print(f"{session.look.free:.1f} of {session.look.cpus} CPUs free: the load is fitted to that", flush=True)


def _run(session: Session, body: Body) -> int:
    from koord.process import life, logs

    logs.setup(verbosity=session.settings.verbosity)
    if session.settings.verbosity == 0:
        logging.getLogger().setLevel(logging.ERROR)

    async def main(one: Life) -> None:
        from roles.sandbox import registry
        from roles.sandbox.compose import Sandbox

        settings = session.settings
        sandbox = Sandbox(
            one, session.scenario, session.run, session.scratch, session.local,
            processes=settings.roles_as_processes, scheduler_config=settings.scheduler_config,
        )  # fmt: skip
        try:
            await sandbox.start()
            await registry.start(sandbox)
            session.store.publish(session.run, sandbox.endpoints)
            await body(sandbox, one, session)
        finally:
            await sandbox.stop()

    return life.run(main)


def _restore(session: Session) -> None:
    """Take everything away; called in every case, also after an exception in the middle of a set-up."""
    if session.local is not None:
        mounts.release(session.local.cgroup_root)
        left = session.local.groups.remove_all()
        session.restored = not left
        for path in left:
            session.errors.append(f"{path} could not be removed")
            print(f"koord sandbox: {path} could not be removed; 'koord sandbox clean' tries again", file=sys.stderr)
    session.store.unpublish(session.run)
    if session.restored is not False:
        session.store.forget(session.run.id)


async def _stay(sandbox: Sandbox, life: Life, session: Session) -> None:
    """`up`: show the nodes until a signal."""
    from roles.sandbox.activity import Activity
    from roles.sandbox.sampler import Sampler
    from roles.sandbox.view.terminal import open_view

    view = open_view()
    sandbox.told = view.say
    sampler = Sampler(session.local.groups, lambda: None, lambda: [], sandbox.batch_cpu) if session.local is not None else None
    if sampler is not None:
        life.spawn(sampler.run(), "sampler")
    try:
        view.say(f"kubectl --kubeconfig {sandbox.kubeconfig} get nodes,pods -A     (Ctrl-C ends everything)")
        await sandbox.submit_simulated_batch()
        if session.scenario.activity and session.scenario.nodes.count > 1:
            activity = Activity(sandbox)
            await activity.start()
            session.store.publish(session.run, sandbox.endpoints)
            life.spawn(activity.run(), "activity")
        while not life.stopping.is_set():
            frame = sandbox.frame(time.monotonic() - session.began, "up")
            view.show(sampler.frame(frame) if sampler is not None else frame)
            try:
                await asyncio.wait_for(life.stopping.wait(), FRAME_SECONDS)
            except TimeoutError:
                continue
    finally:
        view.close()
