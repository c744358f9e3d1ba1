"""The scheduler's snapshot of a large cluster: memory and decisions at 15,000 nodes, and with `--all` at 50,000 nodes and 150,000 pods."""

from __future__ import annotations

import gc
import sys

from koord.process import tuning
from roles.scheduler import testing
from tests.benchmarks.scheduling import body_of, decision_row, run_app, world
from tests.benchmarks.table import Row, current_rss_mib, script


def decisions(nodes: int, pods: int) -> list[Row]:
    found = world(nodes)
    return [
        decision_row(f"decision, {nodes} nodes, pods of one shape, mean", found, [testing.pod(cpu="500m") for _ in range(pods)], 150.0),
        decision_row(
            f"decision, {nodes} nodes, pods all different, mean",
            found,
            [testing.pod(cpu=f"{100 + n}m", memory=f"{100 + n}Mi") for n in range(pods // 5)],
            1500.0 * max(1.0, nodes / 15_000),
        ),
    ]


def infos(pods: int, templates: int = 200) -> list[Row]:
    """Memory of pods as the informer keeps them: decoded from a watch event, then only what the scheduler reads."""
    import msgspec

    from koord.api.objects import Pod

    found = testing.World()
    texts = [
        body_of(testing.pod("NAME", uid="UID", labels={"app": f"a{n}", "pod-template-hash": f"{n:010}"}, cpu=f"{100 + n}m")).replace(
            '"nodeName":""', '"nodeName":"NODE"'
        )
        for n in range(templates)
    ]
    decode = msgspec.json.Decoder(Pod).decode
    gc.collect()
    before = current_rss_mib()
    kept = []
    for number in range(pods):
        text = texts[number % templates].replace("NAME", f"app-{number % templates}-{number:08x}").replace("UID", f"uid-{number:032}")
        kept.append(found.parser.parse(decode(text.replace("NODE", f"node-{number % 5000}"))))
    return [Row(f"memory of {pods} pods", current_rss_mib() - before, "MiB", 400.0 * pods / 150_000, note=f"{templates} templates")]


def whole(nodes: int, pods: int) -> list[Row]:
    ran = run_app(nodes, (testing.pod(f"p{n}", uid=f"u{n}", cpu="100m", memory="64Mi") for n in range(pods)))
    what = f"throughput in process, {nodes} nodes x {pods} pods"
    return [
        Row(what, pods / ran.seconds, "pods/s", 1000.0, "higher", f"CPU {ran.cpu / pods * 1e3:.2f} ms a pod"),
        Row(f"memory, {nodes} nodes x {pods} pods", current_rss_mib(), "MiB", 1536.0 if nodes >= 50_000 else None,
            note="peak of all before it in this process"),
    ]  # fmt: skip


def rows(quick: bool) -> list[Row]:
    tuning.keep_memory()
    tuning.relax_collector()
    if "--all" in sys.argv:
        return [*whole(50_000, 20_000), *infos(150_000), *decisions(15_000, 1000), *decisions(50_000, 1000)]
    if quick:
        return [*decisions(15_000, 200), *infos(10_000)]
    return [*decisions(15_000, 1000), *whole(15_000, 5000), *infos(30_000)]


if __name__ == "__main__":
    script(rows)
