"""Lines printed by the code of releases that the golden logs lack, with the values that went in.

Each line of data/released_lines.jsonl was printed by the released code: by its own expression,
along one of its paths, with its own logger's prefix. One or a few stand for each variant of the
printing function; `want` is what was put in, rounded as printed.
"""

import json
from datetime import datetime
from pathlib import Path

import pytest

from loganalyze import schema
from loganalyze.parse import Parser
from loganalyze.releases import RELEASES
from loganalyze.sources import open_sources

DATA = Path(__file__).parent / "data" / "released_lines.jsonl"
CASES = [json.loads(text) for text in DATA.read_text(encoding="utf-8").splitlines()]
#: Columns that say where a row is from, and texts, which no value went into.
NOT_PRINTED = {
    *("source", "line_no", "session", "time_has_date", "duplicate", "stream", "group"),
    *("release_lo", "release_hi", "kind", "message", "pool_label", "largest_bs", "debug", "soft"),
}


@pytest.mark.parametrize("release", sorted({c["release"] for c in CASES}, key=RELEASES.index))
def test_a_release_is_read_as_it_printed(release, tmp_path):
    """All its lines in one log, a line that is none of SGLang's after each."""
    cases = [case for case in CASES if case["release"] == release]
    log = tmp_path / "server.log"
    text, starts = "", []
    for case in cases:
        starts.append(text.count("\n") + 1)
        text += case["line"].rstrip("\n") + "\n[2026-01-10 08:00:00] Loading shards: 3 of 7\n"
    log.write_text(text, encoding="utf-8")
    parser = Parser("all")
    (source,) = open_sources([str(log)])
    rows = [
        (frame, row)
        for frames in parser.read(source)
        for frame in schema.FRAMES
        for row in getattr(frames, frame).to_dicts()
    ]
    rows.sort(key=lambda r: r[1]["line_no"])
    assert [row["line_no"] for _, row in rows] == starts
    for case, (frame, row) in zip(cases, rows, strict=True):
        assert (row["phase"] if frame == "batch" else row["kind"]) == case["kind"], case["line"]
        ignored = NOT_PRINTED | {"phase"}
        got = {k: v for k, v in row.items() if v is not None and k not in ignored}
        if "time" in got:
            day = datetime.fromisoformat(case["want"]["time"]).date()
            got["time"] = datetime.combine(day, got["time"].time()).isoformat()
        if isinstance(got.get("timestamp"), datetime):
            got["timestamp"] = got["timestamp"].isoformat()
        assert got == case["want"], case["line"]
        if frame != "request":
            place = RELEASES.index(release)
            assert row["release_lo"] <= place <= row["release_hi"], case["line"]
    coverage = parser.coverage()
    assert coverage.lines_unrecognised == coverage.lines_partial == 0
