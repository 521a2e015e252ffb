"""Nothing is executed, fetched, or written outside what the command names."""

import json
import os
import subprocess
import sys

import pytest
from program import EXCERPT, FOUNDING, ROOT, tree

#: What Python tells of itself: processes started, the network, code made of text, files changed.
WATCH = """
import json, os, sys

told = []
KINDS = ("subprocess", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "pty",
         "socket.connect", "socket.bind", "socket.getaddrinfo", "socket.gethostbyname", "urllib",
         "http", "ftplib", "smtplib", "webbrowser", "os.remove", "os.rename", "os.rmdir",
         "os.link", "os.symlink", "os.chmod", "os.chown", "os.truncate", "shutil.rmtree",
         "os.mkdir", "ctypes.dlopen", "pickle.find_class")


def watch(event, args):
    if event == "open":
        path, mode, flags = args
        if isinstance(path, (str, bytes)) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            told.append([event, os.path.abspath(os.fsdecode(path))])
    elif event.startswith(KINDS):
        told.append([event, os.path.abspath(args[0]) if event.startswith(
            ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "shutil")) else repr(args)[:200]])


def main(argv):
    from loganalyze.cli import main
    from loganalyze import pipeline, rules  # what is imported is no part of what is watched
    from loganalyze.report import to_html, to_svg, charts
    sys.addaudithook(watch)
    for args in json.loads(argv):
        try:
            main(args)
        except SystemExit as end:
            assert not end.code, (args, end.code)
    print(json.dumps(told), file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1])
"""


@pytest.fixture
def trap(tmp_path):
    """A log with everything in it that asks to be run or fetched."""
    url = "http://127.0.0.1:9/x"
    lines = [
        "[2026-02-24 12:00:00] server_args=ServerArgs(model_path='http://127.0.0.1:9/m', "
        "tp_size=__import__('os').system('touch owned'), tokenizer_path='s3://bucket/t', "
        "dist_init_addr='127.0.0.1:9', log_requests_target=['/etc/owned'], port=9)",
        f"[2026-02-24 12:00:01] see {url} and file:///etc/passwd $(touch owned) `touch owned`",
        "[2026-02-24 12:00:02] {{ 7*7 }} {% include '/etc/passwd' %} <img src='http://127.0.0.1:9/'>",
        "[2026-02-24 12:00:03] ${jndi:ldap://127.0.0.1:9/a} !!python/object/apply:os.system [x]",
    ]
    log = tmp_path / "trap.log"
    log.write_text("\n".join(lines) + "\n" + FOUNDING.read_text())
    return log


def test_commands_touch_what_they_are_told_to_and_nothing_else(trap, tmp_path):
    out, cwd, home = (tmp_path / name for name in ("out", "cwd", "home"))
    for folder in (out, cwd, home):
        folder.mkdir()
    (tmp_path / "watch.py").write_text(WATCH)
    commands = [
        ["check", trap, EXCERPT],
        ["check", trap, "--json"],
        [
            "report",
            trap,
            "-o",
            out / "p.html",
            "--markdown",
            out / "p.md",
            "--json",
            out / "p.json",
        ],
        ["report", trap, "--figure", out / "p.svg"],
        ["compare", trap, FOUNDING, "-o", out / "c.html"],
        ["plan", "--log", trap],
        ["export", trap, "--frame", "request", "-o", out / "r.csv"],
        ["export", trap, "--frame", "startup", "-o", out / "s.parquet"],
        ["formats", trap],
        ["explain", "KV001"],
    ]
    before = tree(ROOT / "sample_logs")
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": str(home)}
    env |= {"TMPDIR": str(tmp_path / "temp"), "PYTHONDONTWRITEBYTECODE": "1"}
    (tmp_path / "temp").mkdir()
    argv = json.dumps([[os.fspath(word) for word in words] for words in commands])
    done = subprocess.run(
        [sys.executable, str(tmp_path / "watch.py"), argv],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stderr.splitlines()[-1])
    strays = [one for one in told if not one[1].startswith(str(out)) and one[1] != os.devnull]
    assert strays == []
    names = {os.path.basename(path) for event, path in told if event == "open"}
    assert any("p.html" in name for name in names)  # the watch does see
    assert tree(cwd) == tree(home) == tree(tmp_path / "temp") == {}
    assert sorted(tree(out)) == [
        "c.html",
        "p.html",
        "p.json",
        "p.md",
        "p.svg",
        "r.csv",
        "s.parquet",
    ]
    assert tree(ROOT / "sample_logs") == before


def test_a_scan_writes_into_its_folder_and_starts_only_itself(trap, tmp_path):
    out, cwd, home = (tmp_path / name for name in ("out", "cwd", "home"))
    for folder in (cwd, home):
        folder.mkdir()
    (tmp_path / "watch.py").write_text(WATCH)
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": str(home)}
    env |= {"TMPDIR": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    argv = json.dumps(
        [["scan", str(trap), "-o", str(out)], ["query", str(out), "SELECT * FROM runs"]]
    )
    done = subprocess.run(
        [sys.executable, str(tmp_path / "watch.py"), argv],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stderr.splitlines()[-1])
    opened = {path for event, path in told if event == "open" and path != os.devnull}
    strays = {path for path in opened if not path.startswith((str(out), "/dev/shm/pym-"))}
    assert strays == set()  # the locks of processes are in /dev/shm, and gone with them
    assert not [event for event, _ in told if event.startswith(("socket", "urllib", "http"))]
    assert tree(cwd) == tree(home) == {}
    assert sorted(tree(tmp_path).keys() - {f"out/{name}" for name in tree(out)}) == [
        "trap.log",
        "watch.py",
    ]
