"""A log full of secrets: none may stand in any form of its report."""

from __future__ import annotations

import base64
import gzip
import re
from pathlib import Path

from click.testing import CliRunner

from loganalyze.cli import main

ARGS = {
    "model_path": "/home/wilhelmina/models/K",
    "api_key": "sk-live-AAAA1111BBBB",
    "admin_api_key": "adminSECRETxyz99",
    "ssl_keyfile_password": "hunter2hunter2",
    "host": "10.77.31.5",
    "dist_init_addr": "kraken-head.corp.example.internal:5000",
    "hicache_storage_backend_extra_config": '{"token": "xtraTOKEN777"}',
    "model_loader_extra_config": '{"k": "loaderSecret1"}',
    "json_model_override_args": '{"x": "overrideSecret2"}',
    "mem_fraction_static": 0.88,
    "max_running_requests": 64,
}
OTHERS = (
    "Config from http://bob:tOpSeCrEt9@vault.internal.example.com/cfg?access_token=abcDEF123456",
    'INFO:     192.168.44.91:4001 - "POST /v1/chat/completions?api_key=qsKEY998877 HTTP/1.1" 500',
    'INFO:     2001:db8:85a3::8a2e:370:7334:55 - "GET /x HTTP/1.1" 500 Internal Server Error',
    'Receive: obj=GenerateReqInput(text="My patient John Doe has diabetes", rid="x")',
    "Decode batch, #running-req: zz, token usage: api_key=sk-badline-00112233",
)
END = (
    "Scheduler hit an exception: Traceback (most recent call last):",
    '  File "/home/wilhelmina/.venv/lib/scheduler.py", line 10, in run',
    "torch.OutOfMemoryError: CUDA out of memory; ask ops.person@secretcorp.com pwd=passW0rd!7",
    "Received sigquit from a child process. It usually means the child failed.",
)
SECRETS = (
    *("wilhelmina", "sk-live-AAAA1111BBBB", "adminSECRETxyz99", "hunter2hunter2", "10.77.31.5"),
    *(
        "kraken",
        "xtraTOKEN777",
        "loaderSecret1",
        "overrideSecret2",
        "tOpSeCrEt9",
        "vault.internal",
    ),
    *("abcDEF123456", "192.168.44.91", "qsKEY998877", "8a2e:370:7334", "John Doe"),
    *("sk-badline-00112233", "ops.person", "secretcorp", "passW0rd"),
)


def write(path: Path) -> str:
    """Write the log as journald prints it, of a server that stands at its cap and then dies."""
    lines = []

    def put(second: int, message: str) -> None:
        clock = f"11:{30 + second // 60}:{second % 60:02d}"
        stamp = "" if message.startswith((" ", "torch")) else f"[2026-02-24 {clock} TP0] "
        lines.append(f"Feb 24 {clock} gpu-kraken-17 sglang[42]: {stamp}{message}")

    args = ", ".join(f"{name}={value!r}" for name, value in ARGS.items())
    put(0, f"server_args=ServerArgs({args})")
    put(0, "max_total_num_tokens=159277, chunked_prefill_size=8192, max_running_requests=64")
    for i in range(1, 400):
        state = f"#running-req: 64, #token: {140_000 + 20 * i}, token usage: 0.9{i % 9}"
        speed = "cuda graph: True, gen throughput (token/s): 2900.00, #queue-req: 75"
        put(i, f"Decode batch, {state}, {speed}")
        if i % 50 == 0:
            for message in OTHERS:
                put(i, message)
    for message in END:
        put(400, message)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def run(*arguments: object) -> None:
    result = CliRunner().invoke(main, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output


def test_no_secret_reaches_any_form(tmp_path: Path) -> None:
    logs, out = tmp_path / "logs", tmp_path / "out"
    logs.mkdir()
    out.mkdir()
    log = write(logs / "gpu-kraken-17_decode_0.log")
    forms = ("-o", out / "r.html", "--markdown", out / "r.md", "--json", out / "r.json")
    run("report", log, *forms, "--figure", out / "r.svg")
    forms = ("-o", out / "c.html", "--markdown", out / "c.md", "--json", out / "c.json")
    run("compare", log, log, *forms)
    run("scan", logs, "-o", out / "scan", "--jobs", 1)
    files = [f for f in out.rglob("*.*") if f.suffix in (".html", ".md", ".json", ".svg")]
    texts = {f.name: f.read_text(encoding="utf-8") for f in files}
    assert len(texts) >= 9  # seven, the page of the archive, and that of the run
    packed = re.search(r'"figures":"([^"]+)"', texts["r.html"])
    assert packed
    texts["figures"] = gzip.decompress(base64.b64decode(packed[1])).decode()
    shown = [(name, s) for name, text in texts.items() for s in SECRETS if s in text]
    assert shown == []
    assert "CRS001" in texts["r.md"]  # so lines were quoted
    assert "the values of" in " ".join(texts["r.html"].split())  # the page says what is gone
    run("report", log, "--no-redact", "--markdown", out / "kept.md")
    kept = (out / "kept.md").read_text(encoding="utf-8")
    assert "kraken" in kept  # so the search above could have found it
