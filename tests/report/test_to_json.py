from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import datetime

import pytest
import samples
import strategies
from hypothesis import HealthCheck, given, settings

from loganalyze.errors import InputError
from loganalyze.model import Band, Evidence, Finding, Report
from loganalyze.report import to_json


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(strategies.REPORTS)
def test_any_report_survives_the_round_trip(report: Report) -> None:
    assert to_json.loads(to_json.dumps(report)) == report


@pytest.mark.parametrize("name", samples.ALL)
def test_samples_survive_the_round_trip(name: str) -> None:
    report = samples.ALL[name]()
    if name == "hostile":  # it holds lone surrogates, which no JSON may
        report = to_json.loads(to_json.dumps(report))
    assert to_json.loads(to_json.dumps(report)) == report


def test_a_name_that_is_not_utf8_gives_valid_json() -> None:
    name = "/logs/caf\udce9.log"  # how Python names a file of these bytes
    source = replace(samples.founding().sources[0], name=name)
    text = to_json.dumps(replace(samples.founding(), sources=(source,)))
    assert json.loads(text)["sources"][0]["name"] == "/logs/caf\ufffd.log"
    assert "\\udce9" not in text
    text.encode("utf-8")


def test_fields_are_those_of_the_contract() -> None:
    out = to_json.to_dict(samples.founding())
    assert out["schema_version"] == 1
    assert out["is_problem"] is True
    assert set(out) >= {
        *("schema_version", "tool_version", "is_problem", "sources", "verdict", "sessions"),
        *("findings", "checked", "coverage", "series"),
    }
    assert set(out["sources"][0]) >= {"name", "size_bytes", "sha256", "kind", "tz", "lines"}
    assert out["verdict"] == {
        "status": "saturated",
        "primary": "KV001",
        "headline": samples.founding().verdict.headline,
        "confidence": "high",
        "cost": "",
    }
    session = out["sessions"][0]
    assert set(session) >= {
        *("id", "source", "start", "end", "ended_by", "role", "release_range"),
        *("config", "capacity"),
    }
    assert session["config"]["mem_fraction_static"] == 0.88
    assert session["config"]["api_key"] == "[removed]"
    assert session["startup"]["kv_pool_gib"] == 10.42
    assert session["release_range"] == ["0.5.9", "0.5.23"]
    assert session["start"] == "2026-02-24T11:30:00"
    capacity = session["capacity"]
    assert capacity["kv_tokens"] == 159_277
    assert capacity["kv_tokens_source"] == "log"
    assert capacity["bytes_per_token"] == 70_244.6
    assert capacity["tokens_per_req"] == 4_290.2
    assert capacity["requests_fit"] == 37
    assert capacity["rate_per_req"] == 17.34
    finding = out["findings"][0]
    assert set(finding) >= {
        *("code", "name", "severity", "confidence", "session", "summary", "competing"),
        *("episodes", "evidence", "actions"),
    }
    assert finding["severity"] == "critical"
    assert finding["episodes"][0] == {
        "start": "2026-02-24T11:32:17",
        "end": "2026-02-24T12:14:58",
        "first_line": 118,
        "last_line": 1_526,
        "rank": "TP0",
        "source": "server.log",
    }
    assert set(finding["evidence"][0]) >= {
        *("label", "value", "unit", "source", "line_no", "quote"),
    }
    assert finding["actions"][0] == {
        "text": "Give the KV pool more of the GPU: 9.2 GiB were left free after start-up.",
        "flag": "--mem-fraction-static",
        "present": 0.88,
        "proposed": 0.93,
        "effect": "231,120 tokens (+45 %), about 54 requests fit, throughput ×1.22 [1.15, 1.30]",
    }
    assert set(out["checked"][0]) >= {"code", "status", "reason"}
    assert set(out["coverage"]) >= {
        *("lines_total", "lines_batch", "lines_known", "lines_unrecognised", "samples"),
    }


def test_samples_of_coverage_have_their_place() -> None:
    out = to_json.to_dict(samples.hostile())
    assert set(out["coverage"]["samples"][0]) == {"source", "line_no", "text"}


def test_numbers_that_are_not_finite_become_null() -> None:
    report = replace(
        samples.excerpt(),
        findings=(Finding("x", (), (Evidence("a", math.nan), Evidence("b", -math.inf))),),
        series=(
            replace(
                samples.excerpt().series[0],
                columns={"kv_usage": Band((math.nan,), (math.inf,), (0.5,))},
            ),
        ),
    )
    text = to_json.dumps(report)
    out = json.loads(text, parse_constant=lambda word: pytest.fail(word))
    assert [e["value"] for e in out["findings"][0]["evidence"]] == [None, None]
    assert out["series"][0]["columns"]["kv_usage"] == {"min": [None], "mean": [None], "max": [0.5]}


def test_times_have_no_zone_and_keep_milliseconds() -> None:
    session = replace(
        samples.SESSION,
        start=datetime(2026, 2, 24, 11, 30, 0, 250_000),
        end=datetime(2026, 2, 24, 11, 30, 1),
    )
    out = to_json.to_dict(replace(samples.excerpt(), sessions=(session,)))["sessions"][0]
    assert (out["start"], out["end"]) == ("2026-02-24T11:30:00.250", "2026-02-24T11:30:01")


def test_no_character_of_a_log_reaches_a_terminal() -> None:
    text = to_json.dumps(samples.hostile())
    assert text.isascii()
    assert not any(ord(c) < 32 and c != "\n" for c in text)


def test_a_report_without_a_problem_says_so() -> None:
    assert to_json.to_dict(samples.healthy())["is_problem"] is False


def test_unknown_fields_are_ignored_and_missing_ones_take_their_default() -> None:
    out = json.loads(to_json.dumps(samples.founding()))
    out["later"] = 1
    out["findings"][0]["later"] = {"a": 1}
    del out["events"]
    del out["findings"][0]["why"]
    report = to_json.loads(json.dumps(out))
    assert report.events == ()
    assert report.findings[0].why == ""
    assert report.findings[0].code == "KV001"


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"schema_version": 1}', "\ufffd"])
def test_what_is_no_report_is_an_input_error(text: str) -> None:
    with pytest.raises(InputError, match="not a loganalyze report"):
        to_json.loads(text)


def test_a_later_schema_is_named() -> None:
    text = to_json.dumps(replace(samples.excerpt(), schema_version=2))
    with pytest.raises(InputError, match="schema version 2"):
        to_json.loads(text)


def test_the_log_in_which_an_episode_ends_is_read_back() -> None:
    report = samples.founding()
    first, *others = report.findings[0].episodes
    moved = replace(report.findings[0], episodes=[replace(first, last_source="next.log"), *others])
    report = replace(report, findings=[moved, *report.findings[1:]])
    text = to_json.dumps(report)
    assert json.loads(text)["findings"][0]["episodes"][0]["last_source"] == "next.log"
    assert to_json.loads(text).findings[0].episodes[0].last_source == "next.log"
