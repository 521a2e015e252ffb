#!/usr/bin/env python3
"""Write the seeds of the fuzzer: `python tests/fuzz/corpus.py`.

They come from the golden files and the shapes, cut short; the inputs of past finds, `find-*`,
are kept by hand and left alone. Seeds differ in nothing but size from what is out there: the
fuzzer finds the rest.
"""

from __future__ import annotations

import gzip
import io
import json
import sys
import tarfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from targets import ENCODINGS, LAYERS  # noqa: E402

DATA = HERE.parent / "data"
RELEASES = ("0.1.3", "0.1.17", "0.3.1", "0.4.6.post4", "0.4.9", "0.5.4", "0.5.23")
PLAIN = bytes(4)
MOST = 1500


def _cut(text: str, most: int = MOST) -> bytes:
    """Return the first lines of a text, as many as fit."""
    kept: list[str] = []
    for line in text.splitlines():
        if sum(map(len, kept)) + len(line) > most:
            continue
        kept.append(line)
    return ("\n".join(kept) + "\n").encode()


def _spread(text: str) -> bytes:
    """Return lines from all over a text: its kinds stand one after the other."""
    lines = text.splitlines()
    return _cut("\n".join(lines[:: max(1, len(lines) // 12)]))


def logs() -> dict[str, bytes]:
    """Return short logs by name."""
    found = {r: _spread((DATA / "golden" / f"{r}.log").read_text()) for r in RELEASES}
    for path in sorted((DATA / "shapes").glob("*.log")):
        found[path.stem] = _cut(path.read_bytes().decode("utf-8", "replace"), 700)
    return found


def wrapped(log: bytes) -> bytes:
    """Return a log as Docker keeps it."""
    lines = log.decode().splitlines(keepends=True)
    return b"".join(json.dumps({"log": line}).encode() + b"\n" for line in lines)


def server_args_lines() -> dict[str, bytes]:
    """Return what stands behind `server_args=`, by release."""
    found = {}
    for path in sorted((DATA / "golden").glob("*.log")):
        for line in path.read_text().splitlines():
            if "server_args=" in line and "tp_size" in line:
                found[path.stem] = line.split("server_args=", 1)[1][:3000].encode()
    return found


def _archive(log: bytes) -> dict[str, bytes]:
    """Return archives that hold more than one log."""
    tar, packed = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        for name, data in (("a/one.log", log), ("../two.log", log[:300]), ("x.png", b"\x89PNG")):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        link = tarfile.TarInfo("loop")
        link.type, link.linkname = tarfile.SYMTYPE, "loop"
        archive.addfile(link)
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, data in (("a/one.log", log), ("empty/", b""), ("two.log", log[:300])):
            zipped.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), data)
    return {"tar": gzip.compress(tar.getvalue(), mtime=0), "zip": packed.getvalue()}


def seeds() -> dict[str, dict[str, bytes]]:
    """Return the seeds of every target, by name."""
    short, args = logs(), server_args_lines()
    log = short["0.5.4"]
    recipes = {
        f"{n}-{outer}": bytes([n, outer, cut, 0])
        for n in range(len(LAYERS))
        for outer, cut in ((0, 0), (1, 200))
    }
    return {
        "sources": {
            **{name: recipe + log[:900] for name, recipe in recipes.items()},
            **{name: PLAIN + data for name, data in _archive(log).items()},
            **{e: PLAIN + log[:300].decode().encode(e) for e in ENCODINGS},
        },
        "parser": {
            **{name: PLAIN + data for name, data in short.items()},
            "utf-16": b"\1\5\1\0" + short["plain"][:400],
            "json": PLAIN + wrapped(short["0.5.23"]),
            "requests": b"\0\3\1\0" + short["0.5.23"],
        },
        "server_args": args,
        "report": {
            **short,
            "json": wrapped(log),
            "args": b"[2026-01-01 00:00:00] server_args=" + args["0.5.4"] + b"\n" + log,
        },
    }


def main() -> None:
    for target, files in seeds().items():
        folder = HERE / "corpus" / target
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            if not old.name.startswith("find-"):
                old.unlink()
        for name, data in files.items():
            (folder / name).write_bytes(data)


if __name__ == "__main__":
    main()
