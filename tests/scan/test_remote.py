"""Logs in an object store: a real S3 API, served on loopback."""

import subprocess
import sys
import time
import urllib.error
import urllib.request
from base64 import b64encode
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import polars as pl
import pytest
from scanned import free_port, log_text, needed, rotated

from loganalyze.scan import archive as library
from loganalyze.scan import inputs, remote

OPTIONS = library.Options(jobs=1)


@pytest.fixture(scope="module")
def s3():
    """A bucket `logs` with two full and two healthy logs, and what else lies about."""
    needed("obstore")
    needed("moto")
    boto3 = needed("boto3")
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
    needed("obstore")
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


def test_a_signed_address_works_and_is_kept_without_its_signature(tmp_path):
    needed("obstore")
    body, asked = log_text(full=True).encode(), []

    class Store(BaseHTTPRequestHandler):
        """Lets nobody in without the signature, which is for GET; one path wants a password."""

        def do_HEAD(self):
            self.send_error(403)

        def do_GET(self):
            asked.append(self.path)
            key = self.headers["Authorization"] == "Basic " + b64encode(b"me:pass+word").decode()
            if not (
                key if self.path.startswith("/own") else "Signature=s3cret%2Fsig" in self.path
            ):
                self.send_error(403, f"denied: {self.path}")
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", '"one"')
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    query = "?X-Amz-Credential=AKIAKEY0000000000000%2Fx&X-Amz-Date={}&X-Amz-Signature={}"
    good, wrong = query.format(20260302, "s3cret%2Fsig"), query.format(20260302, "0ther%2Fsig")
    with ThreadingHTTPServer(("127.0.0.1", 0), Store) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        root = f"http://127.0.0.1:{server.server_port}"
        private = root.replace("//", "//me:pass%2Bword@")
        paths = [f"{root}/a%20b/server.log{good}", f"{root}/x.log{wrong}", f"{private}/own.log"]
        told = []
        out = tmp_path / "out"
        done = library.scan(paths, str(out), OPTIONS, lambda row, how: told.append(str(row)))
        # Signed again on another day it is the same input, by its tag.
        paths[0] = f"{root}/a%20b/server.log{good.replace('0302', '0303')}"
        again = library.scan(paths, str(out), OPTIONS)
        server.shutdown()
    assert (done.read + done.copies, done.unreadable) == (2, 1)
    assert again.unchanged == 3
    assert "/a%20b/server.log" + good in asked
    logs = set(rows(out)["log"])
    assert f"{root}/a%20b/server.log" in logs
    assert f"{root}/x.log" in logs
    written = b"".join(p.read_bytes() for p in out.rglob("*") if p.is_file())
    for secret in ("s3cret", "0ther", "AKIAKEY", "pass+word", "pass%2Bword"):
        assert secret.encode() not in written
        assert secret not in "".join(told)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://b.s3.amazonaws.com/k.log?X-Amz-Date=1&X-Amz-Signature=ab", ""),
        (
            "https://h/b/k.log?GoogleAccessId=x&Expires=1&Signature=ab&generation=7",
            "?generation=7",
        ),
        ("https://a.blob.core.windows.net/c/k.log?sv=2024&sp=r&sig=ab%2B", ""),
        ("https://u:p@h/k.log?sig=x", "https://h/k.log"),
        (
            "https://h/get?file=run-1.log&access_token=abc",
            "?file=run-1.log&access_token=[removed]",
        ),
        ("https://h/k.log?t=0123456789abcdef0123456789abcdef", "?t=[removed 3eb1bd43]"),
        ("https://h/k.log#access_token=abc", "https://h/k.log"),
        ("s3://AKIAX:secret@bucket/k.log", "s3://bucket/k.log"),
        ("abfss://container@account.dfs.core.windows.net/k?x", None),
        ("s3://bucket/a?sig=b", None),
    ],
)
def test_what_is_kept_of_an_address(address, shown):
    if shown is None:
        shown = address
    elif "//" not in shown:
        shown = address.partition("?")[0] + shown
    assert remote.public(address) == shown


def test_rotated_objects_are_one_run(s3, tmp_path):
    rotated(tmp_path / "in")
    for path in (tmp_path / "in").iterdir():
        s3.put_object(Bucket="logs", Key=f"rotated/node7/{path.name}", Body=path.read_bytes())
    done = library.scan(["s3://logs/rotated/"], str(tmp_path / "out"), OPTIONS)
    assert (done.read, done.runs) == (3, 1)
    (row,) = rows(tmp_path / "out").to_dicts()
    assert (row["log"], row["files"]) == ("s3://logs/rotated/node7/server.log", 3)
    assert (row["host"], row["lines"]) == ("node7", 123)
    assert library.scan(["s3://logs/rotated/"], str(tmp_path / "out"), OPTIONS).unchanged == 3


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
