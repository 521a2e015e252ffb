"""Archives to scan: small logs with known causes, written line by line."""

import gzip
import importlib
import os
import socket
from datetime import datetime, timedelta
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
POOL = 100_000
#: Where CI has the extra `archive`, a test that skips for want of it would hide a fault.
REQUIRED = os.environ.get("LOGANALYZE_REQUIRE_ARCHIVE") == "1"


def needed(name):
    """Return a module of the extra `archive`; skip where it is missing and not required."""
    if REQUIRED:
        return importlib.import_module(name)
    return pytest.importorskip(name, reason="pip install 'loganalyze[archive]'")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def log_text(*, full, lines=60, model="Qwen3-32B", start="2026-03-02 10:00:00", step_s=4, seed=0):
    """Return a log: start-up, and statistics every `step_s` seconds.

    Full: the pool at 0.98 with 40 waiting all the time, which is KV001 and nothing else.
    Otherwise it is half empty with an empty queue.
    """
    clock = datetime.fromisoformat(start)
    out = [
        f"[{clock} TP0] server_args=ServerArgs(model_path='/models/{model}', tp_size=1, "
        f"mem_fraction_static=0.88, random_seed={seed}, api_key='sk-very-secret-key')",
        f"[{clock} TP0] max_total_num_tokens={POOL}, chunked_prefill_size=8192, "
        "max_prefill_tokens=16384, max_running_requests=512, context_len=32768, "
        "available_gpu_mem=7.90 GB",
        f"[{clock}] The server is fired up and ready to roll!",
    ]
    for k in range(lines):
        clock += timedelta(seconds=step_s)
        usage = 0.98 if full else 0.50
        running, queue = (40, 40 + k % 3) if full else (20, 0)
        out.append(
            f"[{clock} TP0] Decode batch, #running-req: {running}, #token: {int(POOL * usage)}, "
            f"token usage: {usage:.2f}, cuda graph: True, "
            f"gen throughput (token/s): {running * 15 + k % 7:.2f}, #queue-req: {queue}"
        )
    return "\n".join(out) + "\n"


def rotated(folder, n=3, full=True):
    """Cut one log into parts as logrotate leaves them, the oldest packed; return the text."""
    text = log_text(full=full, lines=40 * n)
    lines = text.splitlines(keepends=True)
    size = -(-len(lines) // n)
    pieces = ["".join(lines[k * size : (k + 1) * size]) for k in range(n)]
    folder.mkdir(parents=True, exist_ok=True)
    for age, piece in enumerate(reversed(pieces)):
        name = "server.log" + (f".{age}" if age else "")
        if age == n - 1:
            (folder / f"{name}.gz").write_bytes(gzip.compress(piece.encode()))
        else:
            (folder / name).write_text(piece)
    return text
