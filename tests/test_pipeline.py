"""From logs to a report: what is quoted, counted, reduced, and what never gets in."""

import gzip
from datetime import datetime, timedelta

import pytest

from loganalyze import pipeline
from loganalyze.errors import InputError, UsageError
from loganalyze.filters import Filters
from loganalyze.report import to_json

T0 = datetime(2026, 1, 5, 10)
START = [
    "[2026-01-05 10:00:00] server_args=ServerArgs(model_path='/home/alice/m', "
    "mem_fraction_static=0.88, api_key='sk-live-1234567890', decode_log_interval=40)",
    "[2026-01-05 10:00:00 TP0] max_total_num_tokens=10000, chunked_prefill_size=8192, "
    "max_prefill_tokens=16384, max_running_requests=2048, context_len=4096, "
    "available_gpu_mem=9.20 GB",
]


def decode(second, usage=0.95, running=10, queue=5, rate=100.0):
    stamp = (T0 + timedelta(seconds=second)).strftime("%Y-%m-%d %H:%M:%S")
    return (
        f"[{stamp} TP0] Decode batch, #running-req: {running}, #token: {int(usage * 10000)}, "
        f"token usage: {usage:.2f}, cuda graph: True, gen throughput (token/s): {rate:.2f}, "
        f"#queue-req: {queue}"
    )


def full_pool(seconds=300, step=4):
    """Return a log of a server whose pool is full while requests wait."""
    return [*START, *(decode(s, usage=0.95 + 0.01 * (s % 3)) for s in range(1, seconds, step))]


@pytest.fixture
def log(tmp_path):
    def write(lines, name="server.log"):
        path = tmp_path / name
        path.write_text("\n".join(lines) + "\n")
        return str(path)

    return write


def test_every_quote_is_the_line_it_names(log):
    lines = full_pool()
    path = log(lines)
    quotes = [
        (e.source, e.line_no, e.quote)
        for f in pipeline.analyze(path).findings
        for e in f.evidence
        if e.quote
    ]
    assert quotes
    for source, line_no, quote in quotes:
        assert source == path
        assert quote == lines[line_no - 1]


def test_no_secret_and_no_prompt_gets_into_any_output(log):
    lines = full_pool()
    echo = "[2026-01-05 10:00:09] Receive: obj=GenerateReqInput(text='my PIN is 4711')"
    # A prompt that stands on the same line as a record, as interleaved writers leave it.
    lines = [line + (echo if k % 2 else "") for k, line in enumerate(lines)]
    lines.insert(5, echo)
    text = to_json.dumps(pipeline.analyze(log(lines)))
    for private in ("4711", "sk-live-1234567890", "alice"):
        assert private not in text
    assert "KV001" in text


def test_what_was_removed_is_said(log):
    removed = pipeline.analyze(log(full_pool())).redacted
    assert removed["server argument api_key"] == 1


def test_one_bad_input_does_not_stop_the_others(log, tmp_path):
    good, other = log(full_pool()), log(["GET / 200"] * 5, "nginx.log")
    report = pipeline.analyze(str(tmp_path / "none.log"), good, other)
    assert report.verdict.primary == "KV001"
    assert [u.name for u in report.unreadable] == [str(tmp_path / "none.log"), other]
    assert "no SGLang line in 5 lines" in report.unreadable[1].message


def test_a_log_cut_in_the_middle_of_its_gzip_is_analysed_and_named(tmp_path):
    packed = gzip.compress(("\n".join(full_pool(3000, 1)) + "\n").encode())
    cut = tmp_path / "server.log.gz"
    cut.write_bytes(packed[: len(packed) // 2])
    report = pipeline.analyze(str(cut))
    assert report.verdict.primary == "KV001"
    assert [u.name for u in report.unreadable] == [str(cut)]


def test_a_usage_that_is_no_number_is_missing(log):
    lines = full_pool()
    lines[10] = lines[10].replace("token usage: 0.9", "token usage: nan")
    assert pipeline.analyze(log(lines)).verdict.primary == "KV001"


def test_a_failure_of_several_lines_does_not_hide_the_lines_after_it(log):
    oom = ["[2026-01-05 10:00:09 TP0] Decode out of memory. Try to lower your batch size."]
    oom += ["Try to allocate 3 tokens."]
    lines = [f"node-03: {line}" for line in [*START, *oom, *full_pool()[2:]]]
    report = pipeline.analyze(log(lines))
    assert report.coverage.lines_batch == len(full_pool()) - len(START)


def test_no_usable_input_is_an_error(log):
    with pytest.raises(InputError, match="no SGLang line in 5 lines"):
        pipeline.analyze(log(["GET / 200"] * 5))


def test_a_limit_that_does_not_exist_is_refused_before_reading(tmp_path):
    with pytest.raises(UsageError, match="KV001 has no limit nonsense"):
        pipeline.analyze(str(tmp_path / "none.log"), overrides={"KV001.nonsense": 1})


def test_the_same_log_in_gzip_gives_the_same_findings(log, tmp_path):
    lines = full_pool()
    packed = tmp_path / "server.log.gz"
    packed.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))
    plain, gz = pipeline.analyze(log(lines)), pipeline.analyze(str(packed))
    assert [(f.code, f.summary) for f in plain.findings] == [
        (f.code, f.summary) for f in gz.findings
    ]
    assert gz.sources[0].lines == len(lines)


def test_filters_keep_the_capacity_printed_before_the_window(log):
    report = pipeline.analyze(log(full_pool()), filters=Filters(since="-2m"))
    (session,) = report.sessions
    assert session.capacity.kv_tokens == 10000
    assert session.start >= T0 + timedelta(seconds=297 - 120)


def test_filters_that_leave_nothing_say_what_the_log_has(log):
    with pytest.raises(InputError, match="ranks TP0"):
        pipeline.analyze(log(full_pool()), filters=Filters(ranks=("TP7",)))


def test_events_are_counted_once_and_zero_is_stated(log):
    retract = (
        "[2026-01-05 10:00:30 TP{}] KV cache pool is full. Retract requests. #retracted_reqs: 3, "
        "#new_tokens_gained: 40, #new_token_ratio: 0.1000 -> 0.5000"
    )
    access = '[2026-01-05 10:00:31] INFO:     10.0.0.7:5 - "POST /generate HTTP/1.1" 503 No'
    refused = [access.replace("503 No", "429 Too Many Requests")] * 2
    lines = [*full_pool(), *(retract.format(rank) for rank in range(8)), access, *refused]
    events = {e.kind: e for e in pipeline.analyze(log(lines)).events}
    assert (events["retract"].count, events["retract"].total) == (1, 3)
    assert events["exception"].count == 0
    assert events["http_5xx"].count == 1
    assert events["http_4xx"].count == 2


def test_the_timeline_keeps_every_extreme_and_every_gap(log):
    lines = [decode(s, usage=0.50, queue=0) for s in (*range(0, 4000, 2), *range(4200, 8000, 2))]
    lines[700] = decode(1400, usage=0.99, queue=77)
    (series,) = pipeline.analyze(log(lines)).series
    usage, queue = series.columns["kv_usage"], series.columns["queue_req"]
    assert max(usage.max) == 0.99
    assert max(queue.max) == 77
    assert min(usage.min) == 0.5
    assert len(series.x) <= 1500
    assert series.gaps == [(T0 + timedelta(seconds=3998), T0 + timedelta(seconds=4200))]
    assert not {x for x in series.x if 4010 <= x * series.step < 4190}


def test_a_very_long_log_gives_the_same_answer_reduced(log, monkeypatch):
    path = log(full_pool(seconds=4000, step=1))
    whole = pipeline.analyze(path)
    monkeypatch.setattr("loganalyze.store.MAX_ROWS", 800)
    reduced = pipeline.analyze(path)
    assert any("merged to one per" in note for note in reduced.coverage.notes)
    assert reduced.coverage.lines_batch == whole.coverage.lines_batch
    assert reduced.verdict.primary == whole.verdict.primary == "KV001"
    (a,), (b,) = ([f for f in r.findings if f.code == "KV001"] for r in (whole, reduced))
    for one, other in zip(a.episodes, b.episodes, strict=True):
        assert abs((one.start - other.start).total_seconds()) <= 16
        assert abs((one.end - other.end).total_seconds()) <= 16


def test_the_chart_of_a_reduced_log_shows_prefill_batches_not_their_sums(log, monkeypatch):
    monkeypatch.setattr("loganalyze.store.MAX_ROWS", 100)
    prefill = (
        "[{} TP0] Prefill batch, #new-seq: 1, #new-token: 500, #cached-token: 0, "
        "token usage: 0.50, #running-req: 10, #queue-req: 0, "
    )
    lines = []
    for s in range(0, 2000, 2):
        lines += [decode(s), prefill.format(T0 + timedelta(seconds=s + 1))]
    (series,) = pipeline.analyze(log(lines)).series
    band = series.columns["new_token"]
    assert {v for part in (band.min, band.mean, band.max) for v in part if v is not None} == {500}


def test_rows_from_before_and_after_a_restart_are_never_merged(log, monkeypatch):
    monkeypatch.setattr("loganalyze.store.MAX_ROWS", 10)
    lines = []
    for life in range(3):
        lines += [START[1].replace("=10000", f"={10000 + life}")]
        lines += [decode(10 * life + s) for s in range(9)]
    sessions = pipeline.analyze(log(lines)).sessions
    assert [s.config.kv_capacity_tokens for s in sessions] == [10000, 10001, 10002]


def test_the_report_survives_its_json(log):
    text = to_json.dumps(pipeline.analyze(log(full_pool())))
    assert to_json.dumps(to_json.loads(text)) == text


def test_an_episode_ends_in_the_log_that_holds_its_last_line(log):
    lines = full_pool()
    whole = pipeline.analyze(log(lines))
    new, old = log(lines[30:], "s.log"), log(lines[:30], "s.log.1")
    (one,), (cut,) = (r.findings[0].episodes for r in (whole, pipeline.analyze(new, old)))
    assert (one.last_source, cut.source, cut.last_source) == (None, old, new)
    assert (cut.first_line, cut.last_line) == (one.first_line, one.last_line - 30)


def test_a_log_that_holds_every_line_twice_is_judged_as_if_it_held_each_once(tmp_path):
    lines = full_pool()
    once, twice = tmp_path / "once.log", tmp_path / "twice.log"
    once.write_text("".join(f"{line}\n" for line in lines))
    twice.write_text("".join(f"{line}\n{line}\n" for line in lines))
    want, found = (pipeline.analyze(str(path), drawn=False) for path in (once, twice))
    assert [(f.code, f.summary) for f in found.findings] == [
        (f.code, f.summary) for f in want.findings
    ]
    assert found.verdict == want.verdict
    assert not want.coverage.notes
    (note,) = found.coverage.notes
    assert note.endswith("every line stands in it 2 times; each was counted once")
