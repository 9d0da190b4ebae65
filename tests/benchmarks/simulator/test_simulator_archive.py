from __future__ import annotations

from pathlib import Path

from benchmarks.simulator.archive import Archive, GrowingLog, unpack


def test_what_was_added_before_a_cut_is_read_whole(tmp_path: Path) -> None:
    """Cut anywhere in the last addition; logs are put together from their slices, whole lines only."""
    log = tmp_path / "steps.jsonl"
    growing, archive = GrowingLog(log), Archive(tmp_path, part_bytes=700)
    assert growing.new_slice() == {}
    expected = b""
    for number in range(12):
        expected += b"line %d\n" % number
        log.write_bytes(expected + b"half a li")
        archive.add({f"windows/{number}": b"%d" % number * 100, **growing.new_slice()})
    parts = sorted(tmp_path.glob("record-*.tar.xz"))
    assert len(parts) > 2 and all(part.stat().st_size <= 700 for part in parts)
    unpack(tmp_path, tmp_path / "whole", (log.name,))
    assert (tmp_path / "whole" / log.name).read_bytes() == expected
    parts[-1].write_bytes(parts[-1].read_bytes()[:-1])
    unpack(tmp_path, tmp_path / "cut", (log.name, "events.jsonl"))
    assert (tmp_path / "cut" / log.name).read_bytes() == expected.replace(b"line 11\n", b"")
    kept = {path.name for path in (tmp_path / "cut" / "windows").iterdir()}
    assert kept == {str(number) for number in range(11)}
    assert (tmp_path / "cut" / "events.jsonl").read_bytes() == b""
