from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import samples

from loganalyze import analyze
from loganalyze.model import Band, Episode, Lever, Plan
from loganalyze.report import charts, facts, phase, plan_to_text, to_html, to_svg, words

VOID = {"meta", "link", "br", "hr", "img", "input", "path", "rect"}


class Page(HTMLParser):
    """What a page consists of: elements with their attributes, and the text between them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.inline: dict[str, list[str]] = {"script": [], "style": []}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
            if tag in self.inline:
                self.inline[tag].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in self.inline:
            self.inline[self.open[-1]][-1] += data
        elif data.strip():
            self.texts.append(" ".join(data.split()))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.elements if name == tag]

    @property
    def text(self) -> str:
        return " ".join(self.texts)


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return {name: to_html.render(make()) for name, make in samples.ALL.items()}


def data_of(page: Page) -> dict[str, object]:
    return json.loads(page.inline["script"][0])


def unpack(packed: object) -> str:
    assert isinstance(packed, str)
    return gzip.decompress(base64.b64decode(packed)).decode()


@pytest.mark.parametrize("name", samples.ALL)
def test_every_page_is_well_formed_and_small_enough(pages: dict[str, str], name: str) -> None:
    assert len(pages[name].encode()) <= 2_200_000
    page = Page(pages[name])
    assert page.open == []
    ids = [a["id"] for _, a in page.elements if a.get("id")]
    assert [i for i, n in Counter(ids).items() if n > 1] == []


@pytest.mark.parametrize("name", samples.ALL)
def test_nothing_is_loaded_from_anywhere(pages: dict[str, str], name: str) -> None:
    page = Page(pages[name])
    assert not page.all("link")
    assert not page.all("img")
    assert not page.all("iframe")
    for tag, attrs in page.elements:
        assert "src" not in attrs, tag
        assert "style" not in attrs, tag
        assert not [k for k in attrs if k.startswith("on")], tag
        for key in ("href", "xlink:href", "action"):
            assert (attrs.get(key) or "#").startswith("#"), tag
    assert "url(" not in page.inline["style"][0]
    assert "@import" not in page.inline["style"][0]


def test_the_policy_allows_what_is_in_the_file_and_nothing_else(pages: dict[str, str]) -> None:
    page = Page(pages["founding"])
    policy = next(a["content"] for a in page.all("meta") if a.get("http-equiv")) or ""
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert (rules["base-uri"], rules["form-action"]) == ("'none'", "'none'")
    assert "unsafe" not in policy

    def hash_of(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    (style,) = page.inline["style"]
    _, script = page.inline["script"]
    plotly = unpack(data_of(page)["plotly"])
    assert rules["style-src"].split() == [hash_of(style), hash_of("")]
    assert rules["script-src"].split() == [hash_of(script), hash_of(plotly)]
    assert next(i for i, (t, a) in enumerate(page.elements) if a.get("http-equiv")) < next(
        i for i, (t, _) in enumerate(page.elements) if t in ("style", "script")
    )


def test_plotly_travels_once_and_whole(pages: dict[str, str]) -> None:
    from plotly.offline import get_plotlyjs

    data = data_of(Page(pages["founding"]))
    assert unpack(data["plotly"]) == get_plotlyjs()
    assert pages["founding"].count("H4sI") == 2  # gzip in base64: plotly.js and the numbers
    assert set(data) == {"figures", "ids", "plotly"}
    figures = json.loads(unpack(data["figures"]))
    assert [p["id"] for p in figures["panels"]][:4] == [
        "usage",
        "running",
        "waiting",
        "throughput",
    ]


def test_a_page_without_a_timeline_carries_no_script(pages: dict[str, str]) -> None:
    page = Page(pages["excerpt"])
    assert page.inline["script"] == []
    assert len(pages["excerpt"]) < 60_000
    assert "Too few statistics lines" in page.text


def test_the_same_report_gives_the_same_bytes(pages: dict[str, str]) -> None:
    assert to_html.render(samples.founding()) == pages["founding"]


def test_the_page_without_script_says_everything(pages: dict[str, str]) -> None:
    report, text = samples.founding(), Page(pages["founding"]).text
    wanted = [report.verdict.headline, "Saturated", "KV001", "kv-saturation"]
    for f in report.findings:
        wanted += [f.summary, f.why, f.competing, f.name]
        wanted += [a.text for a in f.actions] + [a.effect for a in f.actions]
        wanted += [e.label for e in f.evidence] + [e.quote or "" for e in f.evidence]
    wanted += [c.reason for c in report.checked if c.status != "fired"]
    wanted += ["--mem-fraction-static 0.88 → 0.93", "server.log:612", "server.log:118-1526"]
    wanted += ["159,277 tokens / 4,290.2 tokens, rounded down", "enter_usage 0.9"]
    wanted += [report.command, report.sources[0].sha256, "the log names no time zone"]
    wanted += ["1,526 lines read", "client addresses (42)", "watchdog timeouts"]
    wanted += ["×1.50 (1.40 to 1.60)", "KV cache in fp8", "74 (+37)"]
    assert [w for w in wanted if w and " ".join(w.split()) not in text] == []


def test_sections_come_in_the_order_of_the_reader(pages: dict[str, str]) -> None:
    page = Page(pages["founding"])
    order = [a.get("id") or a.get("aria-label") for a in page.all("section")]
    assert order[1:] == [
        *("Key numbers", "short", "timeline", "findings", "checks", "capacity", "arguments"),
        *("events", "coverage", "reproduce"),
    ]
    articles = [a["id"] for a in page.all("article")]
    assert articles == ["finding-0", "finding-1", "finding-2", "finding-3"]


@pytest.mark.parametrize("name", samples.ALL)
def test_tables_have_captions_and_scopes(pages: dict[str, str], name: str) -> None:
    page = Page(pages[name])
    assert len(page.all("caption")) == len(page.all("table"))
    assert all(a.get("scope") in ("col", "row") for a in page.all("th"))
    assert len(page.all("h1")) == 1
    assert len(page.all("main")) == 1
    assert page.all("html")[0]["lang"] == "en"
    assert all(
        a.get("role") == "img" and a.get("aria-label")
        for a in page.all("svg")
        if a.get("class") == "still"
    )


def test_links_lead_somewhere(pages: dict[str, str]) -> None:
    for text in pages.values():
        page = Page(text)
        ids = {a.get("id") for _, a in page.elements}
        assert {(a["href"] or "")[1:] for a in page.all("a")} <= ids


def test_hostile_text_is_text(pages: dict[str, str]) -> None:
    page = Page(pages["hostile"])
    honest = {tag for tag, _ in Page(pages["founding"]).elements} | {"b", "div"}
    assert {tag for tag, _ in page.elements} - honest == set()
    assert len(page.inline["script"]) == 2
    assert len(page.inline["style"]) == 1
    assert "</script><script>window.pwned=1</script>" in page.text
    assert '"><img src=x onerror="window.pwned=1">' in page.text
    assert "{{ 7*7 }}" in page.text
    assert not re.search(
        r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]", pages["hostile"]
    )


def test_a_page_that_is_too_long_says_what_it_left_out(pages: dict[str, str]) -> None:
    text = Page(pages["heavy"]).text
    assert "more findings, in full in the JSON form" in text
    assert "400 spells, the" in text
    assert "Of 48 ranks the 8 that stand out are drawn" in text


def test_zero_counts_are_stated(pages: dict[str, str]) -> None:
    assert [(e.name, e.n) for e in facts.events(samples.founding())] == [
        ("retractions (KV pool full while decoding)", 214),
        ("HTTP 4xx answers", 3),
        ("requests aborted by a retraction", 0),
        ("exceptions", 0),
        ("watchdog timeouts", 0),
        ("health checks failed", 0),
        ("HTTP 5xx answers", 0),
    ]


def test_arguments_that_matter_come_first_and_are_marked() -> None:
    (one,) = facts.arguments(samples.founding())
    assert [a.name for a in one.first[:3]] == ["model_path", "tp_size", "dp_size"]
    marks = {a.name: a.mark for a in [*one.first, *one.rest]}
    assert marks["mem_fraction_static"] == "default 0.9; KV001 proposes another value"
    assert marks["api_key"] == "value removed"
    assert marks["page_size"] == ""
    assert "watchdog_timeout" in [a.name for a in one.rest]


def test_key_numbers_are_those_of_the_log() -> None:
    numbers = {k.name: k for k in facts.key_numbers(samples.excerpt())}
    assert {name: k.value for name, k in numbers.items()} == {
        "KV pool usage": "0.94",
        "running requests": "35",
        "waiting requests": "115",
        "decode throughput": "607",
        "requests that fit": "37",
        "decode rate per request": "17.34",
    }
    columns = {"kv_usage": lambda t: 0.9, "swa_token_usage": lambda t: 0.9 - t / 1_000}
    two_pools = samples.series(columns, seconds=60, step=1)
    base = samples.excerpt()
    session = replace(
        base.sessions[0], capacity=replace(base.sessions[0].capacity, other_pools=True)
    )
    two = replace(base, series=(two_pools,), sessions=(session,))
    names = {k.name: k for k in facts.key_numbers(two)}
    assert names["requests that fit"].note.startswith("full KV pool: ")
    assert "usage of the fullest pool" in names
    assert words.pool_name(two) == "full KV pool"
    assert numbers["requests that fit"].note == "KV pool: 159,742 tokens / 4,290 each"
    founding = {k.name: k for k in facts.key_numbers(samples.founding())}
    assert founding["decode throughput"].note.startswith("median; peak ")
    assert founding["decode rate per request"].note.startswith("mean, lines ")
    affected = list(founding.values())[-1]
    assert affected == ("time in KV001", "42 min 41 s", "", "95% of the log, 1 spell")


def test_of_several_ranks_the_numbers_are_those_of_the_one_the_verdict_names() -> None:
    queue = {"DP0 TP0": 0.0, "DP1 TP2": 106.0, "DP2 TP4": 0.0}
    rows = tuple(
        samples.series(
            {
                "kv_usage": lambda t, q=q: 0.84 if q else 0.13,
                "running_req": lambda t, q=q: 28.0 + t % 20 / 10 - 1 if q else 4.0,
                "queue_req": lambda t, q=q: q,
                "gen_throughput": lambda t: 500.0,
            },
            seconds=100,
            step=2,
            rank=rank,
        )
        for rank, q in queue.items()
    )
    report = replace(samples.dp8(), series=rows, findings=())
    values = {k.name: k.value for k in facts.key_numbers(report)}
    assert values["waiting requests"] == "106"
    assert values["KV pool usage"] == "0.84"
    assert values["running requests"] == "28"
    assert facts.measured(report).startswith("Levels of DP1 TP2, 2026-02-24 ")
    timeline, cloud = charts.timeline(report), phase.lay_out(report)
    assert timeline
    assert cloud
    said = facts.timeline_caption(report, timeline)
    assert said.startswith("On DP1 TP2, KV usage was typically 0.84")
    assert min(cloud.x) > 26  # not the 4 of the other ranks
    assert "DP1 TP2 alone" in facts.phase_caption(report, cloud)
    # The rank of the primary finding goes before the one with the longest queue.
    named = replace(report, findings=samples.dp8().findings)
    assert charts.worst(named) == ("server.log", 1, "DP0 TP0")


def test_an_episode_that_ends_before_it_starts_has_no_negative_share() -> None:
    moment = replace(samples.KV001.episodes[0], start=samples.at(60), end=samples.at(59.7))
    half = replace(moment, end=samples.at(60.3))
    base = samples.founding()

    def times(*episodes: Episode) -> list[facts.KeyNumber]:
        finding = replace(base.findings[0], episodes=episodes)
        found = facts.key_numbers(replace(base, findings=(finding,)))
        return [k for k in found if k.name.startswith("time in")]

    assert times(moment) == []
    assert [k[1:] for k in times(half)] == [("0.3 s", "", "under 1% of the log, 1 spell")]
    t = charts.timeline(replace(base, findings=(replace(base.findings[0], episodes=(moment,)),)))
    assert t
    ((a, b),) = t.lanes[0].spans
    assert a == b


@pytest.mark.parametrize(("primary", "said"), [("KV001", True), ("MAM001", False)])
def test_the_pool_is_called_the_ceiling_only_where_it_is_the_cause(
    primary: str, said: bool
) -> None:
    report = samples.founding()
    report = replace(report, verdict=replace(report.verdict, primary=primary))
    cloud = phase.lay_out(report)
    assert cloud
    assert ("the pool is the ceiling" in facts.phase_caption(report, cloud)) is said


def test_plan_and_tile_round_alike() -> None:
    # 44.7 requests fit, 78.2 with the change: 44 whole ones, and 34 more.
    now = Lever("as it is", concurrency=44.7, more_decodes=0.0)
    more = Lever("memory fraction 0.9", concurrency=78.2, more_decodes=33.5)
    assert [row.fit for row in facts.lever_rows(now, [more])] == ["44 (+0)", "78 (+34)"]
    text = plan_to_text.render(Plan(None, now, [more]), False, 100)
    assert [line.split()[5] for line in text.splitlines() if line.startswith("1    ")] == ["78"]


def test_waiting_outside_the_queue_is_waiting() -> None:
    base = samples.healthy()
    columns = {
        "kv_usage": lambda t: 0.7,
        "queue_req": lambda t: 0.0,
        "prealloc_req": lambda t: 64.0,
    }
    report = replace(base, series=(samples.series(columns, seconds=20, step=2),))
    timeline = charts.timeline(report)
    assert timeline
    said = facts.timeline_caption(report, timeline)
    assert "typically 64 requests waited for preallocation" in said
    assert "no request waited" not in said
    names = [k.name for k in facts.key_numbers(report)]
    assert "in preallocation queue" in names
    assert "KV in transfer" not in names


def test_the_still_page_is_the_same_without_its_script() -> None:
    page = Page(to_html.render_still(samples.founding()))
    assert page.inline["script"] == []
    assert samples.founding().verdict.headline in page.text
    assert len(page.all("article")) == 4


def test_no_failed_request_is_a_count_where_requests_were_logged() -> None:
    report = replace(samples.founding(), events=())
    seen = replace(report.coverage, by_kind={"decode": 9, "access": 4})
    assert [(e.name, e.n) for e in facts.events(replace(report, coverage=seen))] == [
        ("HTTP 4xx answers", 0),
        ("HTTP 5xx answers", 0),
    ]
    unseen = replace(report.coverage, by_kind={"decode": 9})
    assert facts.events(replace(report, coverage=unseen)) == []


def test_where_a_page_grows_too_large_the_live_figures_go_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    symptoms = [replace(samples.KV004, explained_by="KV001") for _ in range(300)]
    report = replace(samples.founding(), findings=(samples.KV001, *symptoms))
    page = to_html.render(report)
    assert len(page.encode()) <= 2_200_000
    assert 'id="page-data"' in page
    assert "more findings: in the JSON form." in page
    monkeypatch.setattr(to_html, "MAX_BYTES", 300_000)  # less than plotly.js alone
    page = to_html.render(report)
    assert len(page.encode()) <= 300_000
    assert 'id="page-data"' not in page
    assert page.count('<svg class="still"') == 2


def test_a_share_is_of_the_session_that_the_claim_names() -> None:
    base = samples.restarts()  # KV001 holds for 4 x 4,000 s of the 29,760 s of session 3
    verdict = replace(base.verdict, primary="KV001")
    tile = list(facts.key_numbers(replace(base, verdict=verdict)))[-1]
    assert tile[1:] == ("4 h 26 min", "", "54% of session 3, 4 spells")
    down = list(facts.key_numbers(base))[-1]  # a server that is down is in no session
    assert (down.name, down.note) == ("time in CRS001", "3 spells")


@pytest.mark.parametrize("name", samples.ALL)
def test_every_problem_says_what_else_was_weighed_and_which_limits_were_used(name: str) -> None:
    page = to_html.render(samples.ALL[name]())
    problems = len(re.findall(r'<article class="finding (?:warning|critical)"', page))
    assert page.count("Other causes weighed") >= problems
    assert page.count("Limits used") >= problems


def test_the_timeline_as_numbers_never_mixes_two_pools() -> None:
    columns = {
        "full_token_usage": lambda t: 0.3,
        "swa_token_usage": lambda t: 0.9,
        "running_req": lambda t: 8.0,
    }
    rows = (samples.series(columns, seconds=240, step=2),)
    timeline = charts.timeline(replace(samples.founding(), series=rows))
    assert timeline
    heads, table = facts.timeline_rows(timeline)
    assert heads == [
        "KV pool usage: full attention",
        "KV pool usage: sliding window",
        "Running requests",
    ]
    means = {tuple(cell.split(" (")[0] for cell in cells) for _, cells in table}
    assert means == {("0.30", "0.90", "8")}


def test_rows_that_are_left_out_are_counted() -> None:
    evidence = tuple(
        replace(samples.KV001.evidence[0], line_no=i, quote=f"q {i}") for i in range(1, 31)
    )
    finding = replace(samples.KV001, evidence=evidence, actions=samples.KV001.actions[:1] * 9)
    text = Page(to_html.render(replace(samples.founding(), findings=(finding,)))).text
    for left_out in ("10 more rows", "1 more action", "10 more lines"):  # of 30, 9 and 30
        assert f"And {left_out}: in the JSON form." in text


def test_causes_and_events_without_a_lane_are_named() -> None:
    """Nine causes and five kinds of events are one too many of each for the timeline."""
    report = samples.founding()
    codes = [f"KV{i:03}" for i in range(11, 20)]
    happened = next(e for e in report.events if e.kind == "retract")
    kinds = ["kv_oom", "exception", "traceback", "leak", "sigterm"]
    report = replace(
        report,
        findings=[replace(samples.KV001, code=code, name="") for code in codes],
        events=[replace(happened, kind=kind) for kind in kinds],
    )
    text = Page(to_html.render(report)).text
    left_out = "KV019, SIGTERM received"
    assert f"no room for {left_out}, which the findings and events below have" in text
    assert f"no room for {left_out}: see the findings and events" in to_svg.render(report)


def _lines(phase: str, stamp: str, usage: float) -> str:
    """One line of a disaggregated server, as it prints it."""
    if phase == "decode":
        return (
            f"[{stamp} TP0] Decode batch, #running-req: 30, #token: 90000, token usage: {usage}, "
            "pre-allocated usage: 0.05, #prealloc-req: 40, #transfer-req: 2, #retracted-req: 0, "
            "cuda graph: True, gen throughput (token/s): 1090.91, #queue-req: 0"
        )
    return (
        f"[{stamp} TP0] Prefill batch, #new-seq: 1, #new-token: 900, #cached-token: 0, "
        f"token usage: {usage}, #running-req: 0, #queue-req: 0, #prealloc-req: 24, "
        "#inflight-req: 1, input throughput (token/s): 3000.00, cuda graph: False"
    )


@pytest.mark.parametrize(
    ("tags", "ranks", "who"),
    [
        (("decode-0  | ", "prefill-0  | "), {"TP0"}, "decode TP0"),
        (("", ""), {"TP0 decode lines", "TP0 prefill lines"}, ""),
    ],
)
def test_two_servers_of_one_log_are_two_lines_and_never_one_mean(
    tmp_path: Path, tags: tuple[str, str], ranks: set[str], who: str
) -> None:
    """A decode server at usage 0.9 and a prefill server at 0.1, with and without a tag."""
    log = tmp_path / "server.log"
    lines = []
    for second in range(90):
        stamp = f"2026-03-02 09:{second // 60:02}:{second % 60:02}"
        for tag, kind, usage in zip(tags, ("decode", "prefill"), (0.9, 0.1), strict=True):
            lines.append(tag + _lines(kind, stamp, usage))
    log.write_text("\n".join(lines) + "\n")
    report = analyze(str(log))
    assert {s.rank for s in report.series} == ranks
    timeline = charts.timeline(report)
    assert timeline
    assert {c.mean[0] for c in timeline.of("usage") if c.label.endswith("KV pool")} <= {0.9, 0.1}
    assert len(timeline.lines) == 2
    usage = next(k for k in facts.key_numbers(report) if k.name == "KV pool usage")
    assert (usage.value, usage.note) in [("0.90", "the only value"), ("0.10", "the only value")]
    if who:
        assert usage.value == "0.90"
        assert facts.measured(report).startswith(f"Levels of {who}, 2026-03-02 09:00:00 to ")
    assert not timeline.restarts


def test_a_peak_that_is_the_median_is_not_called_the_only_value() -> None:
    levels = [0.9] * 60 + [0.2] * 30
    series = samples.series({"kv_usage": lambda t: levels[int(t)]}, seconds=90, step=1)
    series = replace(series, columns={"kv_usage": Band(levels, levels, levels)})
    usage = next(iter(facts.key_numbers(replace(samples.excerpt(), series=(series,)))))
    assert (usage.value, usage.note) == ("0.90", "median and peak, near line 10")
