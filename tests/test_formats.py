"""Every sample gives what it must, to its own format and to no other."""

import re
from datetime import datetime

import pytest

from loganalyze import formats, schema
from loganalyze.errors import UsageError
from loganalyze.lines import Reader
from loganalyze.parse import Parser
from loganalyze.releases import RELEASES, bounds, parse_range
from loganalyze.search import BATCH, MARKS
from loganalyze.sources import open_sources

FORMATS = {fmt.name: fmt for fmt in formats.load()}
SAMPLES = [(name, s) for name, found in formats.samples().items() for s in found]
IDS = [f"{name}-{s.release}-{k}" for k, (name, s) in enumerate(SAMPLES)]

PLACE = {"source", "line_no", "group", "duplicate", "release_lo", "release_hi", "args_text"}


def read_rows(path):
    parser = Parser("all")
    (source,) = open_sources([str(path)])
    return [
        (name, row)
        for frames in parser.read(source)
        for name in schema.FRAMES
        for row in getattr(frames, name).to_dicts()
    ], parser


def test_every_format_has_samples():
    assert set(formats.samples()) == set(FORMATS)


@pytest.mark.parametrize("copies", [1, 60], ids=["field by field", "by layout"])
@pytest.mark.parametrize(("name", "sample"), SAMPLES, ids=IDS)
def test_sample_gives_what_it_must(name, sample, copies, tmp_path):
    path = tmp_path / "server.log"
    path.write_text((sample.line + "\n") * copies)
    rows, parser = read_rows(path)
    assert len(rows) == copies
    lines = sample.line.count("\n") + 1
    for k, (frame, row) in enumerate(rows):
        if row["time"] is not None:
            row["time"] = row["time"].isoformat()
        want = dict(sample.want)
        if "time" in want:
            want["time"] = want["time"].isoformat()
        got = {c: v for c, v in row.items() if v is not None and c not in PLACE and v is not False}
        dated = (
            {"time_has_date": row["time_has_date"]} if want.get("time_has_date") is False else {}
        )
        flags = {c: v for c, v in want.items() if v is False}
        assert frame == FORMATS[name].frame
        assert {c: v for c, v in want.items() if v is not False} == got
        assert flags == {c: row[c] for c in flags} | dated
        assert row["line_no"] == k * lines + 1
        if frame != "request":
            assert row["release_lo"] <= RELEASES.index(sample.release) <= row["release_hi"]
    assert parser.coverage().lines_known == parser.coverage().lines_total == copies * lines


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_reads_no_sample_of_another(name):
    reader = Reader([FORMATS[name]])
    for other, sample in SAMPLES:
        readings = reader.read(sample.line)
        names = [r.format.name for r in readings if not r.echo]
        assert names == [name] * (other == name), sample.line


@pytest.mark.parametrize(("name", "sample"), SAMPLES, ids=IDS)
def test_the_search_finds_every_sample(name, sample):
    """By a literal; and by a mark in it or in the anchor, or by the word `batch`."""
    fmt, line = FORMATS[name], sample.line.encode()
    literals = [literal for literal in fmt.find if literal in line]
    assert literals
    if fmt.name != "access" and not fmt.multiline:  # whose literals are looked for themselves
        anchor = re.search(fmt.anchor, sample.line)[0].encode()
        assert BATCH in literals or any(set(text) & set(MARKS) for text in (*literals, anchor))


def test_labels_are_read_in_any_order():
    line = (
        "[2026-01-10 18:04:13 TP0] Decode batch, #queue-req: 3, token usage: 0.24, "
        "gen throughput (token/s): 77.58, #token: 225, #running-req: 1"
    )
    (reading,) = Reader(formats.load()).read(line)
    assert (reading.partial, reading.cut) == (False, False)
    assert reading.values["token_usage"] == "0.24"
    assert reading.values["token"] == "225"
    assert reading.values["queue_req"] == "3"


@pytest.mark.parametrize("copies", [1, 60])
@pytest.mark.parametrize(
    "extra",
    ["#new-thing: 5, ", "new usage (x/y): 0.50, ", "flag: True, ", "words: some text, ", "lone, "],
)
def test_an_unknown_label_costs_nothing_else(extra, copies, tmp_path):
    """A release to come adds a label: its lines are read, and counted as partly read."""
    line = (
        "[2026-01-10 18:04:13 TP0] Decode batch, #running-req: 1, #token: 225, "
        f"{extra}token usage: 0.24, gen throughput (token/s): 77.58, #queue-req: 3"
    )
    path = tmp_path / "server.log"
    path.write_text((line + "\n") * copies)
    rows, parser = read_rows(path)
    assert len(rows) == copies
    for _, row in rows:
        assert (row["running_req"], row["token"], row["token_usage"]) == (1, 225, 0.24)
        assert (row["gen_throughput"], row["queue_req"]) == (77.58, 3)
    coverage = parser.coverage()
    assert coverage.lines_partial == copies
    assert coverage.lines_batch == copies
    assert coverage.samples[0].line_no == 1
    assert coverage.samples[0].text == line


def test_a_renamed_label_is_partial_not_lost(tmp_path):
    path = tmp_path / "server.log"
    path.write_text(
        "[2026-01-10 18:04:13] Decode batch, #running-req: 1, #token: 225, token usage: 0.24, "
        "cuda graph: True, gen throughput (token/s): 77.58, #waiting-req: 3\n"
    )
    rows, parser = read_rows(path)
    assert [(row["running_req"], row["queue_req"]) for _, row in rows] == [(1, None)]
    assert parser.coverage().lines_partial == 1


def test_unreadable_statistics_are_shown(tmp_path):
    path = tmp_path / "server.log"
    path.write_text("[2026-01-10 18:04:13] Decode batch, running 3 of 5\n" * 12)
    rows, parser = read_rows(path)
    assert rows == []
    coverage = parser.coverage()
    assert coverage.lines_unrecognised == 12
    assert [s.line_no for s in coverage.samples] == list(range(1, 11))


def test_other_text_with_the_same_words_is_other_text(tmp_path):
    path = tmp_path / "server.log"
    path.write_text(
        "[2026-01-10 18:04:13] Using cuda graph batch sizes [1, 2, 4]\n"
        "[2026-01-10 18:04:13] #running-req is printed in each batch line\n"
    )
    rows, parser = read_rows(path)
    assert rows == []
    assert parser.coverage().lines_unrecognised == 0


def test_not_a_number_is_null_and_minus_zero_stays(tmp_path):
    path = tmp_path / "server.log"
    path.write_text(
        "[2026-01-10 18:04:13] Decode batch, #running-req: 1, #token: -700, token usage: -0.00, "
        "cuda graph: True, gen throughput (token/s): 80.00, #queue-req: 0, fwd occupancy: nan%\n"
    )
    ((_, row),), _ = read_rows(path)
    assert row["fwd_occupancy"] is None
    assert (row["token"], str(row["token_usage"])) == (-700, "-0.0")
    assert row["time"] == datetime(2026, 1, 10, 18, 4, 13)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ('frame = "batch"\nset = { phase = "decode", colour = "red" }', "no column colour"),
        ('frame = "event"', "no column running_req"),
    ],
)
def test_a_definition_against_the_schema_is_refused(change, message):
    text = (
        f"[mine]\n{change}\nfind = ['Decode']\nanchor = 'Decode'\n"
        "[mine.columns]\nrunning_req = { label = '#running-req', type = 'count' }\n"
    )
    with pytest.raises(UsageError, match=message):
        formats.parse_toml(text)


def test_ranges_of_releases():
    assert bounds([parse_range("0.5.3..0.5.3.post1")]) == (
        RELEASES.index("0.5.3"),
        RELEASES.index("0.5.3.post1"),
    )
    halves = [parse_range("..0.4.2 | 0.5.9.."), parse_range("0.4.0..0.5.8")]
    assert bounds(halves) == (RELEASES.index("0.4.0"), RELEASES.index("0.4.2"))
    everything = (0, len(RELEASES) - 1)
    assert bounds([]) == everything
    assert bounds([parse_range("0.5.9.."), parse_range("..0.5.8")]) == everything
    assert len(RELEASES) == 151
