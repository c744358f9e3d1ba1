"""Random histories of one machine on a modelled kernel, cgroup v1 and v2, without root (BEY-JRN-01).

The same as on real groups (`histories`), but that an agent dies in exactly one of its changes, whichever the seed chooses.
usage: python -m tests.support.modelledhistories 1|2 [count] [first seed]      prints one line of JSON
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from koord import seams
from roles.koordlet.host.root import HostRoot
from roles.sandbox.world.history import History as Told
from roles.sandbox.world.host.files import Killed, ProcessFiles
from roles.sandbox.world.host.layout import BESTEFFORT, LEVELS, Layout
from roles.sandbox.world.host.layout import LIMIT as LIMIT_KNOB
from roles.sandbox.world.host.layout import QUOTA as QUOTA_KNOB
from roles.sandbox.world.host.layout import SHARES as SHARES_KNOB
from roles.sandbox.world.host.machine import Machine
from tests.support.histories import LIMIT, QUOTA, SHARES, History, WrongError

POD = f"{LEVELS[BESTEFFORT]}/kubepods-besteffort-poda.slice"
GROUPS = (POD, f"{POD}/cri-containerd-c.scope", f"{LEVELS[BESTEFFORT]}/kubepods-besteffort-podb.slice")
KNOBS = {QUOTA: QUOTA_KNOB, SHARES: SHARES_KNOB, LIMIT: LIMIT_KNOB}
#: An agent dies in one of so many changes of files; a history of writes has about as many.
_CHANGES = 60
_MEMORY = "/dev/shm"


class _Surroundings(seams.System):
    """Those of whichever process lives at the moment."""


class Modelled(History):
    """One history on a machine that outlives it."""

    GROUPS = GROUPS

    def __init__(self, machine: Machine, seed: int, surroundings: _Surroundings) -> None:
        self.machine, self.surroundings = machine, surroundings
        self.files: ProcessFiles | None = None
        super().__init__(machine.root, seed)

    def now(self, name: str, group: str) -> str:
        return self.machine.kernel.show(self.machine.kernel.groups[group], KNOBS[name])

    def _see(self) -> HostRoot:
        root = super()._see()
        self.machine.mounted_at(str(self.seen))
        dead: list[bool] = []
        self.files = ProcessFiles(self.machine, "koordlet-n", lambda: bool(dead), lambda: dead.append(True))
        self.surroundings.files = self.files
        return root

    def _unsee(self) -> None:
        if self.seen is not None:
            self.machine.unmounted(str(self.seen))
        if self.files is not None:
            self.files.abandon()
        super()._unsee()

    def _resized(self, name: str, group: str, value: int) -> None:
        text = str(value)
        if self.machine.layout.version == 2:
            text = {QUOTA: f"{value} 100000" if value > 0 else "max 100000", SHARES: text, LIMIT: text}[name]
        self.machine.set(group, KNOBS[name], text, "kubelet-n", "resize")

    def _made_anew(self, group: str) -> None:
        self.machine.remove(group)
        for name in GROUPS:
            if name not in self.machine.kernel.groups:
                self.machine.make(name)

    def _killed(self, work: Callable[[], object]) -> None:
        self.end()
        self.machine.steps_to_live = self.random.randint(1, _CHANGES)
        with contextlib.suppress(Killed):
            work()
        self.done["killed in a change"] += not self.machine.steps_to_live
        self.machine.steps_to_live = 0
        self._unsee()

    def close(self) -> None:
        super().close()
        for name in (GROUPS[0], GROUPS[2]):
            self._made_anew(name)


def main(version: int, count: int = 100, first: int = 0) -> dict[str, object]:
    """Histories with seeds from ``first`` on; what happened how often, and what was wrong."""
    base = Path(tempfile.mkdtemp(prefix="koord-histories-", dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None))
    done: Counter[str] = Counter()
    wrong: list[str] = []
    surroundings = _Surroundings()
    token = seams.use(surroundings)
    try:
        told = Told(lambda: 0.0)
        machine = Machine("n", base / "n", cpus=4, memory=4 << 30, layout=Layout(version), history=told, clock=lambda: 0.0)
        for group in GROUPS:
            machine.make(group)
        for seed in range(first, first + count):
            history = Modelled(machine, seed, surroundings)
            try:
                history.run(history.random.randint(6, 18))
            except WrongError as error:
                wrong.append(f"cgroup v{version}, seed {seed}: {error}")
                shutil.rmtree(machine.root / "var/run/koordlet")
            finally:
                history.close()
            told.entries.clear()
            done += history.done
            done["histories"] += 1
    finally:
        seams.leave(token)
        shutil.rmtree(base)
    return {"done": done, "wrong": wrong}


if __name__ == "__main__":
    print(json.dumps(main(*(int(text) for text in sys.argv[1:]))))
