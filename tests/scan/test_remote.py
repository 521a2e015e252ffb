"""Logs in an object store: a real S3 API, served on loopback."""

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import polars as pl
import pytest
from conftest import log_text

from loganalyze.scan import archive as library
from loganalyze.scan import inputs, remote

MISSING = "pip install 'loganalyze[archive]'"
OPTIONS = library.Options(jobs=2)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture(scope="module")
def s3():
    """A bucket `logs` with two full and two healthy logs, and what else lies about."""
    pytest.importorskip("obstore", reason=MISSING)
    pytest.importorskip("moto", reason=MISSING)
    boto3 = pytest.importorskip("boto3", reason=MISSING)
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{port}"
    patch = pytest.MonkeyPatch()
    for name, value in {
        "AWS_ENDPOINT_URL": address,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
    }.items():
        patch.setenv(name, value)
    for _ in range(300):
        try:
            urllib.request.urlopen(address, timeout=1).close()
            break
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.1)
    client = boto3.client("s3", endpoint_url=address, region_name="us-east-1")
    client.create_bucket(Bucket="logs")
    for k in range(4):
        body = log_text(full=k % 2 == 0, seed=k).encode()
        client.put_object(Bucket="logs", Key=f"2026/node{k % 2}/run {k}+.log", Body=body)
    client.put_object(Bucket="logs", Key="2026/model.bin", Body=b"\x7fELF" + bytes(99))
    client.put_object(Bucket="logs", Key="2026/cut.log.zst", Body=b"\x28\xb5\x2f\xfd\x00")
    yield client
    client.close()
    remote._store.cache_clear()
    patch.undo()
    server.kill()
    server.wait()


def rows(out):
    return pl.read_parquet(sorted((out / "dataset/runs").glob("*")))


def test_a_bucket_is_scanned_like_a_folder(s3, tmp_path):
    out = tmp_path / "out"
    done = library.scan(["s3://logs/2026/"], str(out), OPTIONS)
    assert (done.read, done.unreadable, done.other) == (4, 1, 1)
    good = rows(out).filter(pl.col("error").is_null()).sort("log")
    assert good["log"].to_list() == [
        "s3://logs/2026/node0/run 0+.log",
        "s3://logs/2026/node0/run 2+.log",
        "s3://logs/2026/node1/run 1+.log",
        "s3://logs/2026/node1/run 3+.log",
    ]
    assert good["is_problem"].to_list() == [True, True, False, False]
    assert good["host"].to_list() == ["node0", "node0", "node1", "node1"]
    # The same logs on a disk give the same rows, but for their names.
    folder = tmp_path / "copy"
    for k in range(4):
        path = folder / f"node{k % 2}" / f"run {k}+.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(log_text(full=k % 2 == 0, seed=k))
    library.scan([str(folder)], str(tmp_path / "local"), OPTIONS)
    names = ["run", "log", "report"]
    assert good.drop(names).equals(rows(tmp_path / "local").sort("log").drop(names))


def test_objects_are_known_by_their_tag_and_contents(s3, tmp_path):
    out = tmp_path / "out"
    address = "s3://logs/2026/**/*.log"
    assert library.scan([address], str(out), OPTIONS).read == 4
    assert library.scan([address], str(out), OPTIONS).unchanged == 4
    key = "2026/node0/run 0+.log"
    s3.put_object(Bucket="logs", Key=key, Body=log_text(full=False, seed=0).encode())
    done = library.scan([address], str(out), OPTIONS)
    s3.put_object(Bucket="logs", Key=key, Body=log_text(full=True, seed=0).encode())
    assert (done.read, done.unchanged) == (1, 3)
    assert len(rows(out)) == 4


def test_patterns_single_objects_and_what_is_not_there(s3, tmp_path):
    def names(address):
        return [f.name.rpartition("/")[2] for f in inputs.find([address], str(tmp_path))]

    assert names("s3://logs/2026/*/run [01]*.log") == ["run 0+.log", "run 1+.log"]
    assert names("s3://logs/2026/node1/run 3+.log") == ["run 3+.log"]
    assert names("s3://logs/2026/*.log") == ["*.log"]  # `*` stays within a folder
    (gone,) = inputs.find(["s3://logs/1999/"], str(tmp_path))
    assert gone.error == "no object there"
    (gone,) = inputs.find(["s3://no-such-bucket/"], str(tmp_path))
    assert "NoSuchBucket" in gone.error
    assert "127.0.0.1" not in gone.error


def test_http(tmp_path):
    pytest.importorskip("obstore", reason=MISSING)
    (tmp_path / "www").mkdir()
    (tmp_path / "www" / "a server.log").write_text(log_text(full=True))

    class Quiet(SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(tmp_path / "www"))

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        root = f"http://127.0.0.1:{server.server_port}"
        out = tmp_path / "out"
        paths = [f"{root}/a%20server.log", f"{root}/gone.log"]
        done = library.scan(paths, str(out), OPTIONS)
        assert (done.read, done.unreadable) == (1, 1)
        # This server gives no tag, so the contents are fetched, and found to be the same.
        again = library.scan(paths, str(out), OPTIONS)
        server.shutdown()
    assert (again.read, again.unchanged) == (0, 2)
    assert rows(out).filter("is_problem")["primary"].to_list() == ["KV001"]


def test_a_missing_package_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(library.LogAnalyzeError, match="obstore") as raised:
        library.scan(["s3://logs/"], str(tmp_path / "out"), OPTIONS)
    assert "loganalyze[remote]" in raised.value.hint


@pytest.mark.parametrize(
    ("path", "pattern", "fits"),
    [
        ("a/b/c.log", "a/**/*.log", True),
        ("a/c.log", "a/**/*.log", True),
        ("a/b/c.log", "a/*.log", False),
        ("a/c.logs", "a/*.log", False),
        ("a/c1.log", "a/c[0-4].log", True),
        ("a/c7.log", "a/c[!0-4].log", True),
        ("a/c.d.log", "a/c?d.log", True),
        ("a/c/d.log", "a/c?d.log", False),
    ],
)
def test_patterns_match_as_a_shell_does(path, pattern, fits):
    assert remote._fits(path, pattern) is fits
