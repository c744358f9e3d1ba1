"""Lives a world with a profiler on and tells the calls of the functions that the architecture page's walks name: JSON in, JSON out."""

import json
import os
import sys
import tempfile
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from roles.sandbox.world import runner
from roles.sandbox.world.spec import drawn
from roles.sandbox.world.world import World, quiet


def calls(seed: int, walks: list[tuple[str, list[str]]]) -> list[list[str]]:
    """By walk (part of a path, names) the calls of functions that are named so, repetitions left out."""
    told: list[list[str]] = [[] for _ in walks]
    known: dict[CodeType, list[tuple[int, str]]] = {}

    def called(frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        where = known.get(code)
        if where is None:
            qualified = (code.co_name, code.co_qualname)
            found = [(n, name) for n, (part, names) in enumerate(walks) for name in names if name in qualified and part in code.co_filename]
            where = known[code] = found
        for number, name in where:
            if told[number][-1:] != [name]:
                told[number].append(name)

    with tempfile.TemporaryDirectory() as scratch, quiet():
        world = World(drawn(seed), Path(scratch))
        sys.setprofile(called)
        world.run()
        sys.setprofile(None)
    return told


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    runner.prepare()
    print(json.dumps(calls(asked["seed"], asked["walks"])), flush=True)
    os._exit(0)  # what the world leaves behind must not be ended in order
