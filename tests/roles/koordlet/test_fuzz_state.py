"""What koordlet kept over a restart, and what the machine's storage tools print: used, or put aside with one error. Never a crash."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.accounting.histogram import AGENT_CPU, AGENT_MEMORY
from roles.koordlet.host.errors import ParseError
from roles.koordlet.host.storage import LocalStorage, parse_storage
from roles.koordlet.prediction.models import NODE_KEY, Models, PredictionOptions
from roles.koordlet.store import kinds, persist
from roles.koordlet.store.store import MetricStore

NOW = 1_700_000_000.0
NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
thorough = settings(max_examples=100_000 if NIGHTLY else 80)
with_files = settings(max_examples=20_000 if NIGHTLY else 40)

leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.floats(),
    st.text(max_size=6),
    st.sampled_from([1e308, -1, 10**18, "2023-11-14T22:13:20Z", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z", "tomorrow"]),
)
histograms = st.one_of(
    leaves,
    st.fixed_dictionaries(
        {},
        optional={
            "referenceTimestamp": leaves,
            "bucketWeights": st.one_of(
                leaves,
                st.dictionaries(
                    st.one_of(st.integers(-1, 210).map(str), st.text(max_size=3)), st.one_of(st.integers(0, 10_000), leaves), max_size=4
                ),
            ),
            "totalWeight": st.one_of(st.floats(0, 1e6), leaves),
        },
    ),
)
checkpoints = st.one_of(
    st.binary(max_size=30),
    leaves.map(lambda d: json.dumps(d).encode()),
    st.fixed_dictionaries({}, optional={"UID": leaves, "CPU": histograms, "Memory": histograms, "LastUpdated": leaves}).map(
        lambda d: json.dumps(d).encode()
    ),
)


@pytest.mark.feature("KLO-PRED-02")
@with_files
@given(checkpoints)
def test_fuzz_a_checkpoint_is_loaded_or_taken_away(body: bytes) -> None:
    with tempfile.TemporaryDirectory(prefix="koord-fuzz-") as directory:
        path = Path(directory, NODE_KEY)
        path.write_bytes(body)
        models = Models(PredictionOptions(directory=directory))
        loaded = models.restore(set(), NOW)
        assert path.exists() == bool(loaded), "what cannot be used does not stay"
        models.update(NODE_KEY, 1.0, 2.0**30, NOW)
        found = models.predict(NODE_KEY)
        assert 0 <= found.cpu <= AGENT_CPU.end(AGENT_CPU.count - 1) * 1000
        assert 0 <= found.memory <= AGENT_MEMORY.end(AGENT_MEMORY.count - 1)
        assert models.write(models.due(NOW + 3600)) == [NODE_KEY]
        assert Models(PredictionOptions(directory=directory)).restore(set(), NOW) == 1, "what is written can be read"


rows = st.lists(
    st.tuples(
        st.one_of(st.sampled_from(sorted(kinds.SCHEMAS)), st.text(max_size=5)),
        st.lists(st.text(max_size=3), max_size=3).map(tuple),
        st.one_of(st.binary(max_size=24), st.just(int(NOW * 1000).to_bytes(8, "little"))),
        st.one_of(st.binary(max_size=24), st.just(b"\0" * 8)),
    ),
    max_size=4,
)


def dumped(version: Any, order: Any, saved: Any, listed: Any, windows: Any) -> bytes:
    return msgspec.msgpack.encode([version, order, saved, listed, windows])


numbers = st.one_of(st.integers(-(2**63), 2**64 - 1), st.floats())


@pytest.mark.feature("KLO-TSDB-01")
@with_files
@given(
    st.one_of(
        st.binary(max_size=40),
        st.builds(dumped, st.just(1), st.just("little"), st.floats(allow_nan=True), rows, st.none() | st.tuples(numbers, numbers)),
    )
)
def test_fuzz_kept_series(body: bytes) -> None:
    with tempfile.TemporaryDirectory(prefix="koord-fuzz-") as directory:
        Path(directory, persist.FILE).write_bytes(body)
        store = MetricStore()
        assert persist.load(store, directory, NOW) == store.series_count
        store.append(NOW, [(kinds.NODE_CPU, (), 1.0)]) if not store.keys(kinds.NODE_CPU) else None
        store.expire(NOW)
        persist.save(store, directory, NOW)
        assert persist.load(MetricStore(), directory, NOW) == store.series_count


LINES = [
    'NAME="sda" TYPE="disk" MAJ:MIN="8:0"', 'NAME="sda1" TYPE="part" MAJ:MIN="8:1"', 'NAME="vg-a" TYPE="lvm" MAJ:MIN="253:0"',
    'NAME="x\\x20y" TYPE="disk" MAJ:MIN="8:16"', 'NAME="" TYPE="part" MAJ:MIN="8:x"', "  vg0 1 /dev/sda1", "  vg1 2 /dev/sdb",
    "  a-b vg0", "  lv vg0 more",
    'TARGET="/" SOURCE="/dev/mapper/vg0-a--b"', 'TARGET="/data" SOURCE="/dev/sda1[/sub]"',
    'TARGET="" SOURCE=""', 'SOURCE="x" TARGET="y" NAME="z"', "", "\0",
]  # fmt: skip
outputs = st.lists(st.one_of(st.sampled_from(LINES), st.text(max_size=12)), max_size=5).map("\n".join)


@pytest.mark.feature("KLO-SYS-07")
@thorough
@given(outputs, outputs, outputs, outputs)
def test_fuzz_what_storage_tools_print(lsblk: str, vgs: str, lvs: str, findmnt: str) -> None:
    try:
        storage = parse_storage(lsblk, vgs, lvs, findmnt)
    except ParseError as error:
        assert any(str(error).startswith(tool) for tool in ("lsblk", "vgs", "lvs", "findmnt"))  # noqa: PT017
        return
    assert isinstance(storage, LocalStorage)
    for point in storage.mounts:
        number = storage.number_of_mount(point)
        assert number is None or number in storage.disks.values()
    assert set(storage.partitions.values()) <= set(storage.disks)
    assert set(storage.groups.values()) <= set(storage.disks)
