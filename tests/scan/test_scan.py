"""The whole of `scan`: what it writes, and what it does the second time."""

import gzip
import io
import json
import lzma
import os
import re
import tarfile
from datetime import datetime, timedelta

import polars as pl
import pytest
from scanned import log_text, needed

from loganalyze.cli import main
from loganalyze.errors import UsageError
from loganalyze.scan import archive as library
from loganalyze.scan import dataset, query

FULL = {"node1/server0.log", "node1/server2.log", "node2/server1.log"}


def scan(folder, out, **options):
    """Scan in this process, with workers; return the summary and what was told."""
    told = {}
    options = library.Options(**{"jobs": 2, **options})
    done = library.scan(
        [str(folder)], str(out), options, lambda row, how: told.setdefault(row["log"], how)
    )
    return done, {os.path.relpath(k, folder): how for k, how in told.items()}


def table(out, name):
    return pl.read_parquet(sorted((out / "dataset" / name).glob("*.parquet")))


def runs(out):
    """Return the column names of `runs` by log name within its folder."""
    return {os.path.basename(r["log"]): r for r in table(out, "runs").to_dicts()}


def test_a_scan_writes_page_reports_and_dataset(archive, tmp_path, run):
    out = tmp_path / "out"
    done = run("scan", archive, "-o", out, check=0)
    assert "6 inputs (6 read)" in done.stdout
    rows = table(out, "runs")
    problems = rows.filter("is_problem")
    assert {os.path.relpath(log, archive) for log in problems["log"]} == FULL
    assert problems["primary"].to_list() == ["KV001"] * 3
    assert set(rows["host"]) == {"node1", "node2"}
    assert set(rows["model"]) == {"Qwen3-32B"}
    assert set(rows["kv_tokens"]) == {100_000}
    # 60 lines, 4 s apart, after the start-up line at the full minute.
    start = rows.sort("log")["start"][0]
    assert start in (datetime(2026, 3, 2, 10), datetime(2026, 3, 2, 10, 0, 4))
    assert set(rows["end"] - rows["end"].dt.truncate("1d")) == {timedelta(hours=10, minutes=4)}
    assert set(rows["peak_queue_req"]) == {0, 42}
    pages = {r["report"] for r in problems.to_dicts()}
    assert pages == {f"reports/{p.name}" for p in (out / "reports").iterdir()}
    assert all("KV001" in (out / page).read_text() for page in pages)
    assert len(table(out, "findings").filter(pl.col("is_primary"))) == 3
    assert set(table(out, "episodes")["run"]) >= set(problems["run"])


def test_the_series_has_ten_second_steps(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.log").write_text(log_text(full=True, lines=25, step_s=4))
    scan(tmp_path / "in", tmp_path / "out")
    series = table(tmp_path / "out", "series")
    # Lines at 10:00:04, :08, ... 10:01:40: steps 0 to 100 hold 2, 2 or 3, ... lines.
    expected = {}
    for k in range(1, 26):
        step = datetime(2026, 3, 2, 10) + timedelta(seconds=4 * k // 10 * 10)
        expected[step] = expected.get(step, 0) + 1
    assert dict(zip(series["time"], series["lines"], strict=True)) == expected
    assert series["kv_usage_max"].to_list() == pytest.approx([0.98] * len(series))
    # The first step has lines k = 0 and 1: queues of 40 and 41.
    assert series["queue_req_mean"][0] == pytest.approx(40.5)
    assert series["queue_req_max"][0] == 41
    assert series["new_token_sum"].null_count() == len(series)


def test_every_part_has_the_declared_schema(archive, tmp_path):
    out = tmp_path / "out"
    scan(archive, out)
    for name, columns in dataset.TABLES.items():
        for part in (out / "dataset" / name).glob("*.parquet"):
            assert dict(pl.read_parquet_schema(part)) == {c.name: c.dtype for c in columns}
        text = (out / "dataset" / "README.md").read_text()
        assert all(f"| {c.name} |" in text for c in columns)


def test_duckdb_reads_the_dataset(archive, tmp_path):
    duckdb = needed("duckdb")
    out = tmp_path / "out"
    scan(archive, out)
    found = duckdb.sql(
        f"SELECT r.host, count(*) FROM '{out}/dataset/runs/*.parquet' r "
        f"JOIN '{out}/dataset/findings/*.parquet' f USING (run) "
        "WHERE f.is_primary GROUP BY r.host ORDER BY r.host"
    ).fetchall()
    assert found == [("node1", 2), ("node2", 1)]


def test_what_has_not_changed_is_skipped(archive, tmp_path):
    out = tmp_path / "out"
    scan(archive, out)
    before = {p: p.stat().st_mtime_ns for p in out.rglob("*") if p.is_file() and p.suffix}
    done, told = scan(archive, out)
    assert set(told.values()) == {"unchanged"}
    assert (done.unchanged, done.read, done.runs, done.totals.problems) == (6, 0, 6, 3)
    assert {p: p.stat().st_mtime_ns for p in before} == before


def test_contents_decide_and_not_times(archive, tmp_path):
    out = tmp_path / "out"
    scan(archive, out)
    touched, edited = archive / "node1/server0.log", archive / "node2/server0.log"
    os.utime(touched, (1, 1))
    status = edited.stat()
    # Same size and same time of modification, other contents.
    edited.write_text(edited.read_text().replace("#queue-req: 0", "#queue-req: 7"))
    os.utime(edited, ns=(status.st_atime_ns, status.st_mtime_ns))
    done, told = scan(archive, out)
    assert told.pop("node2/server0.log") == "read"
    assert set(told.values()) == {"unchanged"}
    assert done.read == 1
    rows = table(out, "runs")
    assert len(rows) == 6
    assert rows.filter(pl.col("log") == str(edited))["peak_queue_req"].to_list() == [7]


def test_a_log_that_grew_is_as_if_read_whole(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    log = folder / "server.log"
    text = log_text(full=True, lines=40_000, step_s=1)
    assert len(text) > 5 << 20  # smaller ones are read from the start
    cut = text.index("#token", len(text) * 9 // 10)  # in the middle of a line
    log.write_text(text[:cut])
    scan(folder, tmp_path / "out")
    log.write_text(text)
    _, told = scan(folder, tmp_path / "out")
    assert told == {"server.log": "grown"}
    scan(folder, tmp_path / "fresh")
    for name in dataset.TABLES:
        assert table(tmp_path / "out", name).equals(table(tmp_path / "fresh", name)), name
    page = next((tmp_path / "out" / "reports").iterdir())
    assert page.read_text() == (tmp_path / "fresh" / "reports" / page.name).read_text()


def test_a_rotated_log_moves_with_its_runs(tmp_path):
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    (folder / "server.log").write_text(log_text(full=True))
    (folder / "server.log.1").write_text(log_text(full=True, seed=1, lines=70))
    scan(folder, out)
    (folder / "server.log.1").rename(folder / "server.log.2")
    (folder / "server.log").rename(folder / "server.log.1")
    (folder / "server.log").write_text(log_text(full=False, seed=2))
    done, told = scan(folder, out)
    assert told == {"server.log": "read", "server.log.1": "moved", "server.log.2": "moved"}
    assert (done.read, done.moved) == (1, 2)
    found = {name: (r["is_problem"], r["lines_batch"]) for name, r in runs(out).items()}
    assert found == {
        "server.log": (False, 60),
        "server.log.1": (True, 60),
        "server.log.2": (True, 70),
    }
    pages = {r["report"] for r in table(out, "runs").to_dicts() if r["report"]}
    assert pages == {f"reports/{p.name}" for p in (out / "reports").iterdir()}
    assert set(table(out, "findings")["run"]) <= set(table(out, "runs")["run"])
    assert scan(folder, out)[0].unchanged == 3


def test_copies_count_once(archive, tmp_path):
    out = tmp_path / "out"
    text = (archive / "node1/server0.log").read_text()
    (archive / "node2/copy.log").write_text(text)
    done, _ = scan(archive, out)
    assert (done.read, done.copies) == (6, 1)
    assert len(table(out, "runs")) == 6
    assert "also" in (out / "index.html").read_text()
    # When the first name gets other contents, the copy counts for itself.
    (archive / "node1/server0.log").write_text(log_text(full=False, seed=9))
    done, told = scan(archive, out)
    assert told["node2/copy.log"] == "read"
    assert len(table(out, "runs")) == 7


def packed(path, **members):
    """Write an archive of files: name -> text."""
    with tarfile.open(path, "w:gz") as file:
        for name, text in members.items():
            member = tarfile.TarInfo(f"{name}.log")
            member.size = len(text)
            file.addfile(member, io.BytesIO(text.encode()))


def test_a_copy_within_an_archive_counts_once_wherever_it_is_said(archive, tmp_path, run):
    # Six logs of which three are slow, the first of them also in two archives, and one log more.
    out, first = tmp_path / "out", archive / "node1" / "server0.log"
    text, other = first.read_text(), log_text(full=True, seed=7)
    packed(archive / "a.tar.gz", again=text, other=other)
    packed(archive / "b.tar.gz", once_more=text)
    said = "4 of 7 runs had a problem; 2 copies of these logs (2 within archives) not counted: "
    assert said in run("scan", archive, "-o", out, check=0).stdout
    page = (out / "index.html").read_text()
    assert '<h1 id="summary">4 of 7 runs had a problem; most often KV001' in page
    assert "2 copies of these logs (2 within archives) not counted." in page
    assert re.search(r"also [^<]*a\.tar\.gz!again\.log, [^<]*b\.tar\.gz!once_more\.log<", page)
    assert len(table(out, "runs")) == 7
    assert "a.tar.gz!other.log" in runs(out)
    for name in ("findings", "series"):
        assert set(table(out, name)["run"]) <= set(table(out, "runs")["run"])
    assert len(list((out / "reports").iterdir())) == 4
    # The same again, when nothing is new, and when an archive has another name.
    assert said in run("scan", archive, "-o", out, check=0).stdout
    (archive / "a.tar.gz").rename(archive / "c.tar.gz")
    assert said in run("scan", archive, "-o", out, check=0).stdout
    assert "c.tar.gz!again.log" in (out / "index.html").read_text()
    # When the file gets other contents, one of its copies counts for it.
    first.write_text(log_text(full=False, seed=9))
    done, _ = scan(archive, out)
    assert done.totals == (8, 4, 0, 1, 1)
    assert len(table(out, "runs")) == 8


def test_a_packed_copy_counts_once_and_for_itself_once_the_log_goes_on(archive, tmp_path):
    # gzip before the log by name, and at two levels: three files of one text.
    out, log = tmp_path / "out", archive / "node1" / "server0.log"
    (archive / "a.log.gz").write_bytes(gzip.compress(log.read_bytes()))
    (archive / "z.log.xz").write_bytes(lzma.compress(log.read_bytes()))
    done, _ = scan(archive, out)
    assert done.totals == (6, 3, 0, 2, 0)
    assert "server0.log" in runs(out)
    assert not {"a.log.gz", "z.log.xz"} & set(runs(out))
    done, told = scan(archive, out)
    assert (done.unchanged, done.copies, set(told.values())) == (8, 2, {"unchanged"})
    log.write_text(log.read_text() + log_text(full=True, seed=8))
    done, _ = scan(archive, out)
    assert done.totals == (7, 4, 0, 1, 0)
    assert done.unchanged + done.read + done.grown == done.inputs == 8


def test_other_limits_and_wanted_pages_are_read_again(archive, tmp_path):
    out = tmp_path / "out"
    scan(archive, out, pages="none")
    assert not list((out / "reports").iterdir())
    done, _ = scan(archive, out, pages="problems")
    assert (done.read, done.unchanged) == (3, 3)
    assert len(list((out / "reports").iterdir())) == 3
    done, _ = scan(archive, out, pages="all")
    assert done.read == 3
    done, _ = scan(archive, out, pages="all", overrides={"KV001.enter_usage": 0.99})
    assert done.read == 6
    assert table(out, "runs")["run"].n_unique() == len(table(out, "runs")) == 6


def test_a_bad_file_is_a_row_and_stops_nothing(archive, tmp_path, run):
    out = tmp_path / "out"
    (archive / "noise.log").write_bytes(b"\x7fELF" + bytes(range(256)) * 40)
    (archive / "empty.log").write_bytes(b"")
    (archive / "nginx.log").write_text('10.0.0.1 - - "GET / HTTP/1.1" 200 12\n' * 9)
    (archive / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(500))
    packed = gzip.compress(os.urandom(40_000))
    (archive / "cut.log.gz").write_bytes(packed[: len(packed) // 2])
    done = run("scan", archive, "-o", out, check=3)
    bad = {n: r for n, r in runs(out).items() if r["error"]}
    assert set(bad) == {"noise.log", "cut.log.gz"}
    assert all(r["status"] is None and r["sessions"] is None for r in bad.values())
    assert "noise.log: " in done.stderr
    # Six logs, and of what this test adds two that cannot be read, two that are no logs.
    assert "11 inputs (6 read, 2 not readable, 2 no logs, 1 empty)" in done.stdout
    page = (out / "index.html").read_text()
    assert "not analysed" in page
    assert "nginx.log" in page  # as a file that is no log
    assert run("scan", archive, "-o", out).returncode == 3  # known by now, and still so
    assert run("scan", archive / "nginx.log", "-o", tmp_path / "o2").returncode == 2
    assert run("scan", archive / "gone.log", "-o", tmp_path / "o3").returncode == 2
    (tmp_path / "started").mkdir()
    (tmp_path / "started" / "server.log").touch()
    done = run("scan", tmp_path / "started", "-o", tmp_path / "o4", check=2)
    assert "no logs found but 1 empty file" in done.stderr


def test_exit_status_and_json(archive, tmp_path, run):
    out = tmp_path / "out"
    done = run("scan", archive, "-o", out, "--json", "--fail-on", "warning", check=1)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == 6
    assert {r["how"] for r in rows} == {"read"}
    assert sum(r["primary"] == "KV001" for r in rows) == 3
    done = run("scan", archive, "-o", out, "--json", check=0)
    assert {json.loads(line)["how"] for line in done.stdout.splitlines()} == {"unchanged"}
    run("scan", archive / "node2" / "server0.log", "-o", out, "--fail-on", "warning", check=0)


def test_archives_and_patterns(archive, tmp_path):
    tar, notes = tmp_path / "old.tar.gz", tmp_path / "notes.py"
    notes.write_text("print('no log')\n" * 20)
    with tarfile.open(tar, "w:gz") as file:
        file.add(archive / "node1", "node1")
        file.add(notes, "notes.py")
    out = tmp_path / "out"
    done = library.scan(
        [str(tar), str(archive / "*" / "server0.log")], str(out), library.Options(jobs=1)
    )
    assert (done.inputs, done.runs) == (3, 5)
    logs = set(table(out, "runs")["log"])
    assert f"{tar}!node1/server2.log" in logs
    assert str(archive / "node2" / "server0.log") in logs
    again = library.scan([str(tar)], str(out), library.Options(jobs=1))
    assert again.unchanged == 1
    os.utime(tar, (5, 5))  # an archive, too, is known by its contents
    assert library.scan([str(tar)], str(out), library.Options(jobs=1)).read == 0


def test_the_page_is_complete_escaped_and_asks_no_network(archive, tmp_path):
    (archive / "node1" / "<b>x&y.log").write_text(log_text(full=True, seed=5))
    out = tmp_path / "out"
    scan(archive, out)
    page = (out / "index.html").read_text()
    assert "&lt;b&gt;x&amp;y.log" in page
    assert "<b>x" not in page
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", page)
    assert "default-src &#39;none&#39;" in page
    body = page[page.index("<tbody>") :]
    assert body.index("saturated") < body.index("healthy")  # worst first
    rows = re.findall(r'<th scope="row">host-\d</th>(.*?)</tr>', page, re.DOTALL)
    hosts = {tuple(int(x) for x in re.findall(r">(\d+)<", row)) for row in rows}
    assert hosts == {(4, 3, 3), (3, 1, 1)}  # node1 and node2, whose names are nobody's business
    assert "node1" not in page
    assert "very-secret" not in "".join(p.read_text() for p in out.rglob("*.html"))


def test_a_folder_named_by_a_date_or_a_number_is_no_host(tmp_path):
    for name in ("node7/2026-03-02/a.log", "4711/b.log"):
        log = tmp_path / "in" / name
        log.parent.mkdir(parents=True)
        log.write_text(log_text(full=True, seed=len(name)))
    scan(tmp_path / "in", tmp_path / "out", jobs=1)
    hosts = {name: row["host"] for name, row in runs(tmp_path / "out").items()}
    assert hosts == {"a.log": "node7", "b.log": "in"}


def test_host_pattern(archive, tmp_path, run):
    run("scan", archive, "-o", tmp_path / "out", "--host", r"(server\d)", check=0)
    assert set(table(tmp_path / "out", "runs")["host"]) == {"server0", "server1", "server2"}


def test_out_within_the_archive_is_not_scanned(archive, run):
    run("scan", archive, "-o", archive / "out", "--reports", "all", check=0)
    done = run("scan", archive, "-o", archive / "out", check=0)
    assert "6 inputs (6 unchanged)" in done.stdout


def test_a_folder_with_other_things_is_refused(archive, tmp_path, run):
    done = run("scan", archive, "-o", archive)
    assert done.returncode == 2
    assert "is not empty" in done.stderr


def test_query(archive, tmp_path, run):
    out = tmp_path / "out"
    run("scan", archive, "-o", out, check=0)
    done = run(
        "query", out, "SELECT host, count(*) AS n FROM runs GROUP BY host ORDER BY host", "--json"
    )
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"host": "node1", "n": 3},
        {"host": "node2", "n": 3},
    ]
    done = run("query", out, "SELECT host FROM runs ORDER BY host LIMIT 1", "--csv", check=0)
    assert done.stdout == "host\nnode1\n"
    assert "node1" in run("query", out, "SELECT host FROM runs", check=0).stdout
    whole = run("query", out, "SELECT * FROM runs WHERE host = 'node1'", check=0).stdout
    assert whole.count("\nhost                node1\n") == 3  # too wide for a table
    assert "-- row 3 of 3" in whole
    none = run("query", out, "SELECT host FROM runs WHERE host = 'x'", check=0).stdout
    assert none.endswith("(no rows)\n")
    refused = run("query", out, "DROP TABLE runs")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "DROP TABLE runs: is no query" in refused.stderr
    counted = "/* one */ WITH r AS (SELECT host FROM runs) SELECT count(*) AS n FROM r"
    assert '"n"' in run("query", out, counted, "--json", check=0).stdout
    assert "queue_req_max" in run("query", out, "--schema", check=0).stdout


@pytest.mark.parametrize(
    ("sql", "said", "hint"),
    [
        ("runs", "runs: is no query", '"SELECT * FROM runs"'),
        ("SELECT hst FROM runs", "no column hst", "did you mean host?"),
        ("SELECT 1 FROM rns", "no table rns", "runs, findings, episodes, series"),
        ("SELECT * FORM runs", "character 10: expected end of statement, found FORM", "tables"),
    ],
)
def test_a_statement_that_cannot_be_run_is_told_what_is_wrong(sql, said, hint, tmp_path, run):
    (tmp_path / "dataset").mkdir()
    done = run("query", tmp_path, sql)
    assert (done.returncode, done.stdout) == (2, "")
    first, second = done.stderr.splitlines()
    assert said in first
    assert hint in second


@pytest.mark.parametrize(("place", "said"), [("none", "no such folder"), (".", "no dataset")])
def test_a_query_of_what_no_scan_wrote(place, said, tmp_path, run):
    done = run("query", tmp_path / place, "SELECT 1")
    assert done.returncode == 2
    assert said in done.stderr


def test_a_log_that_was_cut_off_is_told_each_time(tmp_path, run):
    packed = gzip.compress(log_text(full=True, lines=300).encode())
    (tmp_path / "cut.log.gz").write_bytes(packed[: len(packed) // 2])
    for how in ("1 read", "1 unchanged"):
        done = run("scan", tmp_path / "cut.log.gz", "-o", tmp_path / "out")
        assert done.returncode == 3
        assert f"({how}, 1 of them only in part)" in done.stdout
        assert "cut.log.gz: cut off after " in done.stderr


@pytest.mark.parametrize(
    "from_",
    [
        "read_csv('{}')",
        "READ_CSV ('{}')",
        "\"read_csv\"('{}')",
        "read_csv/**/('{}')",
        "runs, read_parquet('{}')",
        "(SELECT * FROM read_json('{}'))",
        "'{}'",
        "scan_csv('{}')",
    ],
)
def test_a_query_reads_nothing_but_the_dataset(tmp_path, from_):
    (tmp_path / "out" / "dataset").mkdir(parents=True)
    other = tmp_path / "secret.csv"
    other.write_text("word\nxyzzy\n")
    with pytest.raises(UsageError) as raised:
        query.run(str(tmp_path / "out"), f"SELECT * FROM {from_.format(other)}")
    assert "xyzzy" not in str(raised.value)
    assert query.run(str(tmp_path / "out"), "SELECT log FROM runs").is_empty()


def test_commands_are_registered():
    assert {"scan", "query"} <= main.commands.keys()


def test_a_crash_stands_before_what_is_as_severe_for_longer(tmp_path):
    """Full for 400 s of 400 s, and a death after 236 s without a fault: both are critical."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a-full.log").write_text(log_text(full=True, lines=100))
    died = (
        "[2026-03-02 10:04:01 TP0] Scheduler hit an exception: Traceback (most recent call last):"
    )
    (tmp_path / "logs" / "z-died.log").write_text(
        log_text(full=False, seed=1) + died + "\ntorch.OutOfMemoryError: CUDA out of memory.\n"
    )
    library.scan([str(tmp_path / "logs")], str(tmp_path / "out"), library.Options(jobs=1))
    page = (tmp_path / "out" / "index.html").read_text()
    body = page[page.index("<tbody>") :]
    assert body.count("<small>critical, confidence") == 2
    assert body.index("z-died.log") < body.index("a-full.log")
