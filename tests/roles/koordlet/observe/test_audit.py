"""The audit log and its API (KLO-AUD)."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest

from koord.process.http import OpsServer
from roles.koordlet.audit.log import ROTATE_AT, AuditEvent, AuditLog, log_files
from roles.koordlet.audit.reader import BadRequestError, EventsHandler, Reader, Readers, TokenGoneError


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


def fill(directory: Path, count: int) -> AuditLog:
    log = AuditLog(str(directory))
    for i in range(count):
        log.emit(AuditEvent(type="pod", namespace="ns", name=f"p{i}", reason="UpdateCgroups", message="x"))
    log.flush()
    return log


@pytest.mark.feature("KLO-AUD-01")
class TestLog:
    def test_lines(self, tmp_path) -> None:
        fill(tmp_path, 1).close()
        row = orjson.loads((tmp_path / "audit.log").read_bytes())
        created = row.pop("createdAt")
        assert created[10] == "T"
        assert row == {"type": "pod", "namespace": "ns", "name": "p0", "reason": "UpdateCgroups", "message": "x"}

    def test_verbosity_and_switch(self, tmp_path) -> None:
        log = AuditLog(str(tmp_path / "a"), verbosity=2)
        log.emit(AuditEvent(reason="loud"), verbosity=3)
        log.emit(AuditEvent(reason="kept"), verbosity=2)
        log.close()
        assert b"loud" not in (tmp_path / "a/audit.log").read_bytes()
        off = AuditLog(str(tmp_path / "b"), enabled=False)
        off.emit(AuditEvent(reason="x"))
        off.close()
        assert not (tmp_path / "b").exists()

    @pytest.mark.parametrize("how", ["removed", "moved", "replaced", "directory"])
    def test_a_file_that_others_take_away_is_made_again(self, tmp_path, how) -> None:
        """By a rotation that knows nothing of ours: what is written to the old file nobody finds."""
        directory = tmp_path / "audit"
        log = fill(directory, 1)
        current = directory / "audit.log"
        if how in ("moved", "replaced"):
            current.rename(directory / "audit.log.1")
        else:
            current.unlink()
        if how == "replaced":
            current.touch()
        if how == "directory":
            directory.rmdir()
        log.emit(AuditEvent(reason="later"))
        log.flush()
        assert b"later" in current.read_bytes()
        log.close()

    def test_buffered_for_five_seconds(self, tmp_path) -> None:
        clock = Clock()
        log = AuditLog(str(tmp_path), clock=clock)
        log.emit(AuditEvent(reason="a"))
        assert log_files(str(tmp_path)) == []
        clock.now += 5
        log.emit(AuditEvent(reason="b"))
        assert (tmp_path / "audit.log").read_bytes().count(b"\n") == 2

    def test_rotation_keeps_the_space_bounded_over_restarts(self, tmp_path) -> None:
        clock = Clock()
        for _ in range(6):
            log = AuditLog(str(tmp_path), max_megabytes=6, clock=clock)
            for _ in range(20):
                log.emit(AuditEvent(reason="x", message="y" * 100_000))
                log.flush()
            clock.now += 60
            log.close()
        files = log_files(str(tmp_path))
        assert len(files) == 3
        assert files == [*sorted(files[:-1]), str(tmp_path / "audit.log")]
        assert all(Path(f).stat().st_size <= ROTATE_AT for f in files), "an existing file counts with what it holds"

    def test_files_are_in_order_when_summer_time_ends(self, tmp_path, monkeypatch) -> None:
        monkeypatch.setenv("TZ", "Europe/Berlin")
        time.tzset()
        try:
            clock = Clock()
            clock.now = datetime(2023, 10, 29, 0, 30, tzinfo=UTC).timestamp()
            log = AuditLog(str(tmp_path), clock=clock)
            for number in range(50):
                log.emit(AuditEvent(name=f"p{number}", message="y" * 100_000))
                log.flush()
                clock.now += 60
            log.close()
        finally:
            monkeypatch.undo()
            time.tzset()
        names = [e["name"] for e in Reader(str(tmp_path)).page(50)[0]]
        assert names == [f"p{number}" for number in reversed(range(50))]

    def test_a_directory_that_cannot_be_written_is_reported_once(self, tmp_path, caplog) -> None:
        (tmp_path / "f").write_text("")
        log = AuditLog(str(tmp_path / "f"))
        for _ in range(3):
            log.emit(AuditEvent(reason="x"))
            log.flush()
        assert len([r for r in caplog.records if "cannot be written" in r.getMessage()]) == 1


@pytest.mark.feature("KLO-AUD-02")
class TestReading:
    def test_newest_first_across_files_of_any_line_length(self, tmp_path) -> None:
        (tmp_path / "audit-2024-01-01-00-00-00-0.log").write_bytes(b'{"name":"old"}\nbroken\n' + b'{"name":"' + b"l" * 200_000 + b'"}\n')
        fill(tmp_path, 2).close()
        events, more = Reader(str(tmp_path)).page(10)
        assert [e["name"][:3] for e in events] == ["p1", "p0", "lll", "old"]
        assert not more

    def test_tokens(self, tmp_path) -> None:
        fill(tmp_path, 10).close()
        readers = Readers(str(tmp_path), max_readers=2, max_events=5)
        events, token = readers.page(None, 4, 0.0)
        assert [e["name"] for e in events] == ["p9", "p8", "p7", "p6"]
        events, token = readers.page(token, 4, 1.0)
        assert [e["name"] for e in events] == ["p5", "p4", "p3", "p2"]
        events, end = readers.page(token, 4, 2.0)
        assert ([e["name"] for e in events], end) == (["p1", "p0"], "")
        tokens = [readers.page(None, 1, 3.0)[1] for _ in range(3)]
        with pytest.raises(TokenGoneError):
            readers.page(tokens[0], 1, 4.0)
        assert readers.page(tokens[2], 1, 4.0)[1] == tokens[2]
        with pytest.raises(TokenGoneError):
            readers.page(tokens[2], 1, 4.0 + 601)

    @pytest.mark.parametrize(("text", "size"), [(None, 256), ("", 256), ("x", 256), ("7", 7), ("2048", 2048)])
    def test_sizes(self, tmp_path, text, size) -> None:
        assert Readers(str(tmp_path)).size_of(text) == size

    @pytest.mark.parametrize("text", ["2049", "-1"])
    def test_bad_sizes(self, tmp_path, text) -> None:
        with pytest.raises(BadRequestError):
            Readers(str(tmp_path)).size_of(text)

    def test_over_http(self, tmp_path) -> None:
        import aiohttp

        fill(tmp_path, 3).close()

        async def main() -> list[tuple[int, dict[str, str], Any]]:
            ops = OpsServer("127.0.0.1", 0)
            ops.route("GET", "/events", EventsHandler(Readers(str(tmp_path))))
            ops.route("GET", "/off", EventsHandler(None))
            await ops.start()
            out = []
            try:
                async with aiohttp.ClientSession() as session:
                    for path, accept in (
                        ("/events?size=2", "application/json"),
                        ("/events?size=2", "*/*"),
                        ("/events?size=3", "*/*"),
                        ("/events?pageToken=nope", "*/*"),
                        ("/events?size=99999", "*/*"),
                        ("/off", "*/*"),
                    ):
                        async with session.get(ops.url + path, headers={"Accept": accept}) as response:
                            out.append((response.status, dict(response.headers), await response.text()))
            finally:
                await ops.stop()
            return out

        as_json, as_text, whole, unknown, too_many, off = asyncio.run(main())
        page = orjson.loads(as_json[2])
        assert [e["name"] for e in page["Events"]] == ["p2", "p1"]
        assert page["NextPageToken"]
        assert as_text[1]["Content-Type"].startswith("text/plain")
        assert as_text[1]["Next-Page-Token"]
        assert len(as_text[2].splitlines()) == 2
        assert "Next-Page-Token" not in whole[1]
        assert [unknown[0], too_many[0], off[0], off[2]] == [409, 400, 200, ""]
