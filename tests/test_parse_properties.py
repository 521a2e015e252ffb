"""Whatever the bytes and however they are cut, the same records come out, and nothing raises."""

import gc
import json
import tempfile
import time
import weakref
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from loganalyze import formats, mend, schema, sources
from loganalyze import lines as lines_
from loganalyze.errors import InputError
from loganalyze.lines import Reader, layout_of
from loganalyze.parse import Parser
from loganalyze.sources import BLOCK, open_sources

GOLDEN = Path(__file__).parent / "data" / "golden"
SLOW = settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))


def parse(data, block_size=BLOCK, requests="all", parser=None):
    """Return the frames of a log of these bytes, and its coverage."""
    parser = parser or Parser(requests)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        path.write_bytes(data)
        try:
            (source,) = open_sources([str(path)])
        except InputError:  # binary and empty files are refused
            return None, None
        parts = list(parser.read(source, block_size=block_size))
        coverage = parser.coverage(source)
    frames = {
        name: pl.concat([getattr(p, name) for p in parts]).drop("source", "group")
        for name in schema.FRAMES
        if parts
    }
    counts = (
        coverage.lines_total,
        coverage.lines_batch,
        coverage.lines_known,
        coverage.lines_unrecognised,
        coverage.lines_partial,
        coverage.by_kind,
        [(s.line_no, s.text) for s in coverage.samples],
    )
    return frames, counts


def same(one, other):
    assert one[1] == other[1]
    assert one[0].keys() == other[0].keys()
    for name, frame in one[0].items():
        assert frame.equals(other[0][name]), name


def decode(k, rank=0):
    return (
        f"[2026-11-20 10:{k // 60 % 60:02d}:{k % 60:02d} TP{rank}] Decode batch, "
        f"#running-req: {k}, #token: {k * 100}, token usage: 0.{k % 100:02d}, cuda graph: True, "
        f"gen throughput (token/s): {k}.25, #queue-req: {k % 7}"
    )


FAKE = decode(4, 9)
RETRACT = (
    "[2026-11-20 10:00:00 TP1] KV cache pool is full. Retract requests. #retracted_reqs: 2, "
    "#new_token_ratio: 0.4213 -> 0.9871"
)
GOLDEN_LINES = [
    line
    for release in ("0.1.3", "0.1.17", "0.3.1", "0.4.9", "0.5.4", "0.5.23")
    for line in (GOLDEN / f"{release}.log").read_text().split("\n")
]
LINES = st.one_of(
    st.integers(0, 5000).map(decode),
    st.sampled_from(GOLDEN_LINES),
    st.sampled_from(
        [
            "",
            "other text",
            "  3%|#   | 1/36 [00:01<00:30]\r" + decode(11),
            decode(12) + decode(13),
            decode(14) + "\r",
            decode(15)[:70],
            f"sglang-1  | {decode(16)}",
            json.dumps({"log": decode(17) + "\n", "stream": "stderr"}),
            json.dumps({"log": RETRACT + "\n", "stream": "stderr"}).replace(">", "\\u003e"),
            RETRACT,
            f"[2026-11-20 10:00:00] Receive: obj=GenerateReqInput(rid='a', text='{FAKE}')",
            '[2026-11-20 10:00:00] INFO:     10.0.0.7:51234 - "POST /x HTTP/1.1" 503 Down',
            "[2026-11-20 10:00:00 TP0] Scheduler hit an exception: Traceback (most recent call "
            'last):\n  File "x.py", line 1, in f\nValueError: CUDA out of memory.\n',
            "[2026-11-20 10:00:00 TP0] Decode out of memory. Try to lower your batch size.\n"
            "Try to allocate 3 tokens.\nAvailable tokens: 80\n",
            '[2026-11-20 10:00:00] Receive: obj=GenerateReqInput(text="two\n'
            + FAKE
            + '\nlines", rid="b", stream=False)',
            '[2026-11-20 10:00:00] Receive: obj=GenerateReqInput(text="open',
            "Traceback (most recent call last):\n  File \"y.py\", line 2\nKeyError: 'z'",
            "x" * 20_000 + FAKE,
            f"[2026-11-20 10:00:00] Receive: obj=G(text='{'y' * 40_000} {FAKE}')",
            "progress\r" * 3000 + decode(18),
            "\0\0\0" + decode(19),
            "\x1b[32m" + decode(20) + "\x1b[0m",
            "[10:00:00 TP0] Decode batch. #running-req: 1, #token: 1, token usage: 0.10, "
            "gen throughput (token/s): 1.00, #queue-req: 0",
        ]
    ),
)
LOGS = st.tuples(
    st.lists(st.tuples(LINES, st.integers(1, 40)), min_size=1, max_size=25), st.booleans()
).map(
    lambda drawn: (
        "\n".join(line for line, n in drawn[0] for _ in range(n)) + "\n" * drawn[1]
    ).encode()
)


@given(st.binary(max_size=3000))
@example(b"\xff\xfe\x00")
@example(b"[2026-11-20 10:00:00 TP0] Decode batch")
@example(b"Decode batch, #running-req: 99999999999999999999999999, #queue-req: 1")
@example(b"[2026-99-99 99:99:99 TP999999999999] Decode batch, #running-req: 1, #queue-req: 1")
@example(b'{"log": "[2026-11-20 10:00:00 TP0] Decode batch, #running-req: 1')
@SLOW
def test_any_bytes_parse(data):
    frames, counts = parse(data)
    utf16 = b"\0" in data or data[:2] in (b"\xfe\xff", b"\xff\xfe")
    if frames is not None and b"\n" in data.rstrip(b"\r\n") and not utf16:  # else other line ends
        assert counts[0] == data.count(b"\n") + (not data.endswith(b"\n"))


def test_writers_have_the_same_names_in_blocks_of_any_size():
    """Blocks full of statistics are read before single lines that stand above them."""

    def line(host, text):
        return f"server-1  | [pod/{host}/c] {text}"

    few = [line("gpu-1", decode(k) if k % 300 == 7 else "loading") for k in range(900)]
    data = "\n".join(few + [line("gpu-2", decode(k)) for k in range(900)]).encode()
    whole = parse(data)
    assert len(set(whole[0]["batch"]["stream"])) == 2
    for block_size in (512, 10_000):
        same(parse(data, block_size), whole)


@pytest.mark.parametrize("year", ["0000", "0026", "1999", "2101", "9999"])
def test_a_stamp_of_an_impossible_year_is_left_out(year):
    lines = [decode(k) for k in range(100)]
    lines[60] = lines[60].replace("2026", year)
    frames, counts = parse("\n".join(lines).encode())
    assert counts[1] == 100
    times = frames["batch"]["time"]
    assert times.is_null().to_list() == [k == 60 for k in range(100)]


@given(st.lists(st.one_of(LINES.map(str.encode), st.binary(max_size=200)), max_size=30))
@SLOW
def test_known_lines_among_any_bytes_parse(parts):
    parse(b"\n".join(parts))


@given(LOGS, st.sampled_from([1, 100, 3000, 20_000]), st.sampled_from(["all", "errors"]))
@SLOW
def test_blocks_of_any_size_give_the_same(data, block_size, requests):
    whole = parse(data, requests=requests)
    if whole[0] is not None:
        same(parse(data, block_size, requests), whole)


def folded(line):
    return "\n".join(line[at : at + 90] for at in range(0, len(line), 90))


COPIES = {
    "folded": lambda k: folded(decode(k)),
    "folded, with requests": lambda k: folded(
        decode(k) + "\n" * (k % 2) + f"[x] Receive: obj=G({FAKE})"
    ),
    "non-breaking spaces": lambda k: decode(k).replace(" ", "\u00a0"),
    "bytes": lambda k: json.dumps({"MESSAGE": list(decode(k).encode())}),
    "YAML": lambda k: f"- log: '{decode(k)}'",
}


@pytest.mark.parametrize("copy", COPIES)
def test_blocks_of_any_size_give_the_same_of_a_copied_log(copy):
    lines = ["starting", "", *map(COPIES[copy], range(1500)), FAKE[:50]]
    data = "\n".join(lines).encode()
    whole = parse(data)
    assert whole[1][1] > 700
    for block_size in (60, 3000, 100_000):
        same(parse(data, block_size), whole)


def test_a_rank_below_zero_has_a_layout_of_its_own():
    """Release 0.3.6 alone prints it; the lines beside it are of many releases."""
    line = (
        "[2026-01-06 19:04:06 DP{} TP0] Prefill batch. #new-seq: 1, #new-token: 7, "
        "#cached-token: 0, cache hit rate: 0.00%, token usage: 0.00, #running-req: 0, "
        "#queue-req: 0\n"
    )
    alone = {rank: parse(line.format(rank).encode())[0]["batch"] for rank in ("-1", "0")}
    known = {rank: one["release_hi"][0] for rank, one in alone.items()}
    assert known["-1"] < known["0"]
    for order in (("0", "-1"), ("-1", "0")):
        data = "".join(line.format(rank) * 60 for rank in order).encode()
        rows = parse(data)[0]["batch"]
        for rank in order:
            assert set(rows.filter(dp_rank=int(rank))["release_hi"]) == {known[rank]}


def test_what_a_parser_learned_goes_with_it():
    """A scan has a parser for each log."""
    parser = Parser()
    parse("\n".join(map(decode, range(60))).encode(), parser=parser)
    layouts = [weakref.ref(layout) for layout in parser._layouts.values()]
    del parser
    gc.collect()
    assert layouts
    assert not any(layout() for layout in layouts)


@given(LOGS)
@SLOW
def test_it_does_not_matter_what_was_read_before(data):
    fresh = parse(data)
    parser = Parser("all")
    parse(b"\n".join(line.encode() for line in GOLDEN_LINES) * 3, parser=parser)
    parse(data, parser=parser)
    if fresh[0] is not None:
        same(parse(data, parser=parser), fresh)


@given(LOGS)
@SLOW
def test_search_without_stringzilla_gives_the_same(data):
    with_it = parse(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "Str", None)
        without = parse(data)
    if with_it[0] is not None:
        same(without, with_it)


NOISE = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="\n\r\0#"), max_size=80).filter(
        lambda s: "batch" not in s and ": obj=" not in s and "Traceback" not in s
    ),
    min_size=1,
    max_size=20,
)


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=60), NOISE, st.randoms())
@SLOW
def test_noise_changes_coverage_only(ks, noise, random):
    lines = [(decode(k), True) for k in ks]
    plain, counts = parse("".join(line + "\n" for line, _ in lines).encode())
    for text in noise:
        lines.insert(random.randint(0, len(lines)), (text, False))
    noisy, noisy_counts = parse("".join(line + "\n" for line, _ in lines).encode())
    nos = [no for no, (_, real) in enumerate(lines, 1) if real]
    assert noisy["batch"]["line_no"].to_list() == nos
    assert noisy["batch"].drop("line_no").equals(plain["batch"].drop("line_no"))
    assert noisy_counts[0] == counts[0] + len(noise)
    assert noisy_counts[1:] == counts[1:]


RUNS = ["(", "[2026-01-01 00:00:00 TP0] ", " A", '"', "\\", " %|", " ", "a", "INFO ", "a-1  | "]
RUNS += [
    '{"a":',
    "1",
    "[pod/",
    "10:00:00 ",
    "- ",
    '"msg":"',
    "x=y ",
    "Nov 20 10:00:00 ",
    "ab12cd34",
]
RUNS += ['{a="b"} ', '{"log":"', '\\"', '""', '"a",', "a-", "<a>", "[1,0]<stderr>:", "a=1 ", "> "]
RUNS += ["'", "b'", "- ", "k: '", "k='v' ", "{'a': '", "<a b='c'>", "\\n", "(x.py:1) ", "|", "[1m"]
RUNS += ["<34>1 ", "\t\r", "é", "2026-01-01T00:00:00Z "]
RUNS += [
    "3:04:05 PM ",
    "05/Jan/2026:",
    "5.1.2026 ",
    "20260105",
    "2026年1月",
    "Mon, ",
    " TP0",
    "''",
]


@pytest.mark.parametrize("run", RUNS)
def test_the_cost_of_a_line_is_linear(run):
    """Ten times the line, ten times the work: no pattern starts over at every character."""
    reader = Reader(formats.load())

    def cost(n):
        lines = [run * (n // len(run)) + FAKE, FAKE + run * (n // len(run))]
        best = None
        for _ in range(3):
            start = time.process_time()
            for line in lines:
                for reading in reader.read(line):
                    layout_of(reading)
            took = time.process_time() - start
            best = took if best is None else min(best, took)
        return best

    # Quadratic would be a hundredfold. What starts beyond `MAX_PREFIX` is not looked at.
    assert cost(3900) < 40 * cost(390) + 0.005
    assert cost(60_000) < 40 * cost(6000) + 0.005


@pytest.mark.parametrize("pattern", [lines_._COLOUR, mend._REPAIRS[-2][0]], ids=["lines", "mend"])
def test_a_long_run_of_backslashes_is_looked_at_once(pattern):
    """A prompt that was escaped over and over has 1 MB of them: that took minutes."""

    def cost(n):
        text = "\\" * n
        text = text if isinstance(pattern.pattern, str) else text.encode()
        start = time.process_time()
        assert pattern.sub(text[:0], text) == text
        return time.process_time() - start

    assert cost(40_000) < 40 * min(cost(4_000) for _ in range(3)) + 0.005
