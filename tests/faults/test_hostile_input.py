"""Logs, archives, configurations and arguments made to do harm."""

import csv
import io
import os
import tarfile
import time
import tracemalloc
import zipfile

import pytest
from program import (
    EXCERPT,
    FOUNDING,
    assert_clean,
    assert_refused,
    process,
    run,
    strict_json,
    tree,
)

from loganalyze import redact, server_args, sources
from loganalyze.report import words

ESCAPE = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202e"

# Text ---------------------------------------------------------------------------------------


@pytest.fixture
def escapes(tmp_path):
    """A log whose every kind of text that is shown holds escape sequences."""
    decode = EXCERPT.read_text().splitlines()[0]
    lines = [
        f"[2026-02-24 12:00:00] server_args=ServerArgs(model_path='/m/{ESCAPE}', tp_size=8, "
        f"kv_cache_dtype='{ESCAPE}')",
        decode + ESCAPE,
        decode.replace("#running-req", f"#{ESCAPE}running-req"),
        f"[2026-02-24 12:03:09 TP0] Decode batch, #running-req: {ESCAPE}, #queue-req: 0",
        f"[2026-02-24 12:03:10 TP0] Scheduler hit an exception: Traceback {ESCAPE}",
        f"ValueError: {ESCAPE}",
        f'[2026-02-24 12:03:11] INFO:     1.2.3.4:5 - "GET /{ESCAPE} HTTP/1.1" 500 Internal',
    ]
    log = tmp_path / "server.log"
    log.write_text("\n".join(lines) + "\n")
    return log


@pytest.mark.parametrize(
    "args",
    [
        ["check", "{}"],
        ["check", "{}", "--json"],
        ["report", "{}", "-o", "-"],
        ["report", "{}", "--markdown", "-"],
        ["report", "{}", "--figure", "-"],
        ["formats", "{}"],
        ["plan", "--log", "{}"],
        ["plan", "--log", "{}", "--json"],
        ["compare", "{}", "{}"],
        ["compare", "{}", "{}", "--markdown", "-"],
        ["export", "{}", "--frame", "event", "--format", "csv", "-o", "-"],
        ["export", "{}", "--frame", "startup", "--format", "csv", "-o", "-"],
        ["export", "{}", "--frame", "request", "--format", "csv", "-o", "-"],
    ],
    ids=lambda args: " ".join(args),
)
def test_no_output_obeys_a_log(escapes, args):
    result = run(*(word.replace("{}", str(escapes)) for word in args))
    assert result.exit_code == 0, result.output
    assert_clean(result.stdout)
    assert_clean(result.stderr)


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["text", "json"])
def test_no_alert_obeys_a_log(escapes, form):
    result = process("follow", "-", *form, input=escapes.read_bytes() * 30)
    assert result.returncode == 0, result.stderr
    assert result.stdout
    assert_clean(result.stdout)
    assert_clean(result.stderr)


def test_queries_obey_no_text_and_give_spreadsheets_no_formula(tmp_path):
    log = tmp_path / f"={ESCAPE}.log"
    log.write_bytes(EXCERPT.read_bytes())
    assert process("scan", log, "-o", tmp_path / "out", cwd=tmp_path).returncode == 0
    sql = "SELECT '=1+1' AS formula, log, headline FROM runs"
    for form in ([], ["--csv"], ["--json"]):
        result = run("query", tmp_path / "out", sql, *form)
        assert result.exit_code == 0
        assert_clean(result.stdout)
    text = run("query", tmp_path / "out", sql, "--csv").stdout
    (row,) = csv.DictReader(io.StringIO(text))
    assert row["formula"] == "'=1+1"
    lists = "SELECT ARRAY_AGG(log) AS logs FROM runs"
    assert_refused(run("query", tmp_path / "out", lists, "--csv"))


@pytest.mark.parametrize(
    "value",
    [
        r"'/m/\udcff'",
        r"{'a': ['\ud83d\ude00']}",
        r"b'\xff'",
        "10**400",
        "9" * 4000,
        "9" * 6000,
        "1e999",
        "-1e999",
        "[" * 3000 + "]" * 3000,
        "__import__('os').mkdir('owned')",
        "1j",
        "...",
        "0",
        "-1",
    ],
    ids=lambda value: value[:24],
)
def test_arguments_of_any_value_give_a_report(tmp_path, monkeypatch, value):
    """The values are the ones that a size, a fraction or a name is read from."""
    monkeypatch.chdir(tmp_path)
    names = "model_path", "tp_size", "dp_size", "mem_fraction_static", "max_running_requests"
    args = ", ".join(f"{name}={value}" for name in (*names, "chunked_prefill_size"))
    log = tmp_path / "server.log"
    log.write_text(
        f"[2026-02-24 12:00:00 TP0] server_args=ServerArgs({args})\n" + EXCERPT.read_text()
    )
    report = strict_json(run("check", log, "--json").stdout)
    assert report["coverage"]["lines_batch"] == 1
    assert [c for c in report["checked"] if c["status"] == "error"] == []
    for form in ("-o", "--markdown"):
        assert run("report", log, form, "-").exit_code == 0
    assert run("plan", "--log", log).exit_code == 0
    assert os.listdir() == ["server.log"]


def test_half_a_character_stays_as_it_was_printed():
    args = server_args.parse(r"ServerArgs(a='\udcff', b='\u00e9', c='\U0000d800')")
    assert args == {"a": r"'\udcff'", "b": "é", "c": r"'\U0000d800'"}


@pytest.mark.parametrize(
    "run_",
    [
        "a",
        "'",
        "\\",
        "(",
        "ServerArgs(a='",
        "{'a': ",
        "\x1b[",
        "\x1b]0;",
        "\x9b0;",
        " ",
        "--a-key",
        "api_key='",
        "bearer ",
        "a@",
        "://a:b",
        "eyJaaaaaa.",
        "token=",
        "a.",
        "1.2.",
        "0:",
        "/-",
        "-20260101",
        "_prefill_a",
        "/pods/a_a_",
        ".log",
        "\n",
    ],
)
def test_the_cost_of_a_text_is_linear(run_):
    """Ten times the text, ten times the work; what reads lines has such a test of its own."""

    def cost(n):
        text = "ServerArgs(x='" + run_ * (n // len(run_))
        best = float("inf")
        for _ in range(3):
            start = time.process_time()
            server_args.parse(text)
            redact.Redactor().text(text)
            redact.Redactor().name(text)
            words.clean(text)
            sources._split_name(text)
            best = min(best, time.process_time() - start)
        return best

    assert cost(20_000) < 40 * cost(2_000) + 0.005  # quadratic would be a hundredfold


# Files --------------------------------------------------------------------------------------


def add(archive, name, data=b"", **fields):
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    archive.addfile(info, io.BytesIO(data))


def test_an_archive_is_read_and_never_unpacked(tmp_path):
    """Members named out of the archive, links, devices and pipes reach no file of this machine."""
    secret = tmp_path / "secret.log"
    secret.write_bytes(FOUNDING.read_bytes())
    with tarfile.open(tmp_path / "logs.tar", "w") as archive:
        add(archive, "link.log", type=tarfile.SYMTYPE, linkname=str(secret))
        add(archive, "hard.log", type=tarfile.LNKTYPE, linkname=str(secret))
        add(archive, "zero.log", type=tarfile.CHRTYPE, devmajor=1, devminor=5)
        add(archive, "pipe.log", type=tarfile.FIFOTYPE)
        add(archive, "../../escape.log", EXCERPT.read_bytes())
        add(archive, str(tmp_path / "absolute.log"), EXCERPT.read_bytes())
        add(archive, "latin-\udcff.log", EXCERPT.read_bytes())
    with zipfile.ZipFile(tmp_path / "logs.zip", "w") as archive:
        archive.writestr("../../escape.log", EXCERPT.read_bytes())
    before = tree(tmp_path)
    result = run("check", tmp_path / "logs.tar", tmp_path / "logs.zip", "--json")
    assert result.exit_code == 0, result.stderr
    assert [s["name"].split("!")[1] for s in strict_json(result.stdout)["sources"]] == [
        "../../escape.log",
        str(tmp_path / "absolute.log"),
        r"latin-\xff.log",
        "../../escape.log",
    ]
    assert tree(tmp_path) == before
    assert not (tmp_path.parent.parent / "escape.log").exists()


def member(name, size, data=None, kind=tarfile.REGTYPE):
    """Return a member of a tar archive whose header says that it has this size."""
    data = EXCERPT.read_bytes() if data is None else data
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT) + data + bytes(-len(data) % 512)


WHOLE = member("a.log", EXCERPT.stat().st_size)
LIES = {
    "a member": (WHOLE + member("b.log", 1 << 60), ["a.log", "b.log"]),
    "a name": (WHOLE + member("b.log", 1 << 60, kind=tarfile.GNUTYPE_LONGNAME), ["a.log"]),
    "attributes": (WHOLE + member("b.log", 1 << 60, kind=tarfile.XHDTYPE), ["a.log"]),
    "less than nothing": (WHOLE + member("b.log", -1), ["a.log"]),
}


@pytest.mark.parametrize(("archive", "names"), LIES.values(), ids=LIES)
def test_an_archive_that_lies_about_a_size_ends_where_it_ends(tmp_path, archive, names):
    """To look for the end of 1 EiB took forever, or as much memory as the rest has bytes."""
    (tmp_path / "logs.tar").write_bytes(archive)
    result = run("check", tmp_path / "logs.tar", "--json")
    assert result.exit_code == (3 if "b.log" in names else 0), result.stderr
    found = strict_json(result.stdout)["sources"]
    assert [one["name"].split("!")[1] for one in found] == names


def test_attributes_of_an_archive_are_not_copied_into_every_member(tmp_path):
    """1,000 members with 50 kB of attributes for all that follow each held 30 GB."""
    more = b"".join(b"14 k%06d=va\n" % n for n in range(4_000))
    everywhere = member("g", len(more), more, tarfile.XGLTYPE)
    few = member("x", 14, b"14 c000000=va\n", tarfile.XHDTYPE)
    (tmp_path / "logs.tar").write_bytes((everywhere + few + WHOLE) * 40)
    tracemalloc.start()
    try:
        sources_ = sources.open_sources([str(tmp_path / "logs.tar")])
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(sources_) == 40
    assert most < 5_000_000  # 40 times 4,000 entries are 20 MB


def test_a_file_that_was_packed_without_its_holes_is_said(tmp_path):
    """Its place in the archive holds other bytes than it did."""
    sparse = bytearray(member("b.log", 512, EXCERPT.read_bytes()[:512], tarfile.GNUTYPE_SPARSE))
    sparse[483:495] = b"00004000000\0"  # its size with its holes, in octal
    sparse[148:156] = b"%06o\0 " % (sum(sparse[:148]) + 8 * ord(" ") + sum(sparse[156:512]))
    (tmp_path / "logs.tar").write_bytes(WHOLE + sparse)
    result = run("check", tmp_path / "logs.tar")
    assert result.exit_code == 3
    assert "logs.tar!b.log: " in result.stderr
    assert "packed without its holes, by tar's --sparse" in result.stderr


def test_the_table_of_an_archive_is_read_once(tmp_path, monkeypatch):
    """Once for each member, 3,000 members took minutes."""
    with zipfile.ZipFile(tmp_path / "logs.zip", "w") as archive:
        for n in range(20):
            archive.writestr(f"{n}.log", EXCERPT.read_bytes())
    reads = []
    whole = zipfile.ZipFile._RealGetContents
    monkeypatch.setattr(
        zipfile.ZipFile, "_RealGetContents", lambda self: reads.append(whole(self))
    )
    assert len(sources.open_sources([str(tmp_path / "logs.zip")])) == 20
    assert len(reads) == 1


@pytest.fixture
def special(tmp_path):
    """Paths that are no plain file, by kind."""
    os.mkfifo(tmp_path / "pipe.log")
    (tmp_path / "loop.log").symlink_to("loop.log")
    (tmp_path / "lost.log").symlink_to("gone")
    (tmp_path / "folder.log").mkdir()
    names = ("pipe.log", "loop.log", "folder.log", "lost.log")
    return [*(str(tmp_path / name) for name in names), "/dev/zero", "x" * 300 + ".log"]


@pytest.mark.parametrize(
    "args",
    [
        ["check", "{}"],
        ["report", "{}", "-o", "-"],
        ["formats", "{}"],
        ["plan", "--log", "{}"],
        ["compare", "{}", "{}"],
        ["export", "{}", "--frame", "batch", "--format", "csv", "-o", "-"],
        ["follow", "{}"],
        ["query", "{}", "SELECT 1"],
        ["plan", "--tp", "8", "--model-config", "{}"],
    ],
    ids=lambda args: args[0],
)
def test_what_is_no_plain_file_is_refused_at_once(special, args):
    for path in special:
        if args[0] == "follow" and path.endswith("lost.log"):
            continue  # a log that is to be written yet
        if "--model-config" in args and path.endswith(("pipe.log", "zero")):
            continue  # as good as `<(...)`; what never ends is the caller's
        assert_refused(run(*(word.replace("{}", path) for word in args)))


# Configurations and numbers -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("enter_usage = 0.9", "enter_usage is no table"),
        ("[[KV001]]\nenter_usage = 0.9", "KV001 is no table"),
        ("[KV001]\nenter_usage = '0.9'", "KV001.enter_usage is not a number"),
        ("[KV001]\nenter_usage = true", "KV001.enter_usage is not a number"),
        ("[KV001]\nenter_usage = 2026-01-01", "KV001.enter_usage is not a number"),
        ("[KV001]\nenter_usage = [0.9]", "KV001.enter_usage is not a number"),
        ("[KV001.enter_usage]\nvalue = 0.9", "KV001.enter_usage is not a number"),
        ("[KV001]\nenter_usage = nan", "is not a finite number"),
        ("[KV001]\nenter_usage = " + "9" * 400, "is not a finite number"),
        ("[KV001]\nenter_usage = 0x" + "f" * 9000, "is not a finite number"),
        ("[KV001]\nenter_usage = " + "9" * 5000, "not TOML"),
        ("[KV001]\nenter_usage = -1", "is not between 0 and 1"),
        ("[KV001]\nno_such = 1", "KV001 has no limit no_such"),
        ("[XYZ123]\nenter_usage = 1", "no rule XYZ123"),
        ('["\\u001b[2J"]\nx = 1', "no rule ?[2J"),
        ("[KV001]\nenter_usage = 0.9\n[KV001]\nenter_usage = 0.8", "not TOML"),
        ("[KV001]\nenter_usage = 0.9\nenter_usage = 0.8", "not TOML"),
        ("[KV001]\nenter_usage = " + "[" * 5000 + "]" * 5000, "not TOML"),
        ("x = " + "{a=" * 5000 + "1" + "}" * 5000, "not TOML"),
        ("\x00\x01", "not TOML"),
        (b"\xff\xfe[\x00K\x00", "not TOML"),
    ],
    ids=lambda value: repr(value[:30]),
)
def test_a_configuration_with_a_surprise_is_one_line(tmp_path, text, says):
    config = tmp_path / "limits.toml"
    config.write_bytes(text if isinstance(text, bytes) else text.encode())
    result = run("check", EXCERPT, "--config", config)
    assert_refused(result)
    assert result.stderr.startswith(f"loganalyze: {config}: ")
    assert says in result.stderr


def test_a_configuration_from_windows_is_read(tmp_path):
    config = tmp_path / "limits.toml"
    config.write_bytes(b"\xef\xbb\xbf[KV001]\r\nenter_usage = 0.91\r\n")
    report = strict_json(run("check", EXCERPT, "--json", "--config", config).stdout)
    assert report["findings"][0]["limits"]["enter_usage"] == 0.91


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--since", "-99999999999999999999d"),
        ("--since", ESCAPE),
        ("--until", "2026-02-24T12:00:00+02:00"),
        ("--rank", "TP" + "9" * 40),
        ("--rank", ESCAPE),
        ("--source", ESCAPE),
        ("--set", "KV001.enter_usage=1e999"),
        ("--set", f"{ESCAPE}=1"),
        ("--profile", ESCAPE),
    ],
)
def test_an_option_with_a_surprise_is_one_line(option, value):
    assert_refused(run("check", EXCERPT, f"{option}={value}"))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--remaining-requests", "9" * 400),
        ("--tokens-per-request", "nan"),
        ("--gpu-bandwidth", "nan"),
        ("--mem-fraction", "nan"),
        ("--gpu-mem-gib", "inf"),
        ("--tp", "0"),
        ("--what-if", "replicas=" + "9" * 400),
        ("--what-if", "mem-fraction=nan"),
        ("--what-if", f"kv-dtype={ESCAPE}"),
        ("--session", "-1"),
    ],
)
def test_a_plan_for_a_number_that_counts_nothing_is_refused(option, value):
    assert_refused(run("plan", "--log", EXCERPT, option, value))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[" * 100_000,
        '{"architectures": [1], "num_hidden_layers": "x"}',
        '{"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1e999}',
        '{"architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_attention_heads": 32, '
        '"torch_dtype": "bfloat16", "num_hidden_layers": ' + "9" * 400 + "}",
        '{"architectures": ["LlamaForCausalLM"], "num_hidden_layers": ' + "9" * 5000 + "}",
        '{"architectures": ["\\u001b[2J\\ud800"]}',
    ],
    ids=lambda text: text[:60],
)
def test_a_model_config_with_a_surprise_is_one_line(tmp_path, text):
    config = tmp_path / "config.json"
    config.write_text(text)
    assert_refused(run("plan", "--log", EXCERPT, "--model-config", config))
