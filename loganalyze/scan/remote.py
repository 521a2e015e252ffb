"""Logs in object stores and on web servers, read through obstore.

An address names a store and what to read from it: `s3://bucket/logs/` (all below),
`s3://bucket/logs/**/*.log` (a pattern), `s3://bucket/one.log`. Keys, regions and endpoints
come from the environment, as each store's own tools take them (AWS_*, GOOGLE_*, AZURE_*).

Why each object is fetched once, whole, to a temporary file (2026-11): a log is read for its
records, then hashed, then quoted. Reading it three times over a network costs more than the
file, and the file is gone when the log is done.
"""

from __future__ import annotations

import fnmatch
import re
import tempfile
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, BinaryIO, cast
from urllib.parse import unquote, urlsplit

from loganalyze.errors import InputError, UsageError
from loganalyze.scan.inputs import Input

if TYPE_CHECKING:
    from types import ModuleType

#: Objects up to this size are held in memory and not in a file.
_IN_MEMORY = 1 << 24
_CHUNK = 1 << 22
SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss", "azure", "adl", "http", "https")


def find(address: str) -> Iterator[Input]:
    """Yield the objects that an address names; one with an error if there are none."""
    scheme = urlsplit(address).scheme.lower()
    if scheme not in SCHEMES:
        yield Input(address, error=f"{scheme}:// is no store that can be read", hint=_HINT)
        return
    if scheme in ("http", "https"):
        yield _head(address)
        return
    root, key = _split(address)
    pattern = re.search(r"[*?\[]", key)
    if key and not key.endswith("/") and not pattern:
        found = _head(address)
        if not found.error:
            yield found
            return
    prefix = key[: pattern.start()].rpartition("/")[0] if pattern else key.rstrip("/")
    n, obstore = 0, _obstore()
    try:
        for page in obstore.list(_store(root), prefix or None):
            for one in page:
                if one["size"] and (not pattern or _fits(one["path"], key)):
                    n += 1
                    yield _input(f"{root}/{one['path']}", one, named=bool(pattern))
    except Exception as error:  # the store's own library decides what it raises
        yield Input(address, error=f"cannot be listed ({reason(error)})", hint=_ACCESS)
        return
    if not n:
        yield Input(address, error="no object there", hint="check the address")


def _fits(path: str, pattern: str) -> bool:
    """Match as a shell does: `*` stays within a folder, `**/` crosses any number of them."""
    pieces = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]*\])", pattern)
    special = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    text = "".join(
        special.get(p) or (fnmatch.translate(p)[4:-3] if p.startswith("[") else re.escape(p))
        for p in pieces
    )
    return re.fullmatch(text, path) is not None


def _head(address: str) -> Input:
    root, key = _split(address)
    obstore = _obstore()
    try:
        return _input(address, obstore.head(_store(root), key), named=True)
    except FileNotFoundError:
        return Input(address, error="no such object", hint="check the address")
    except Exception as error:  # the store's own library decides what it raises
        return Input(address, error=f"cannot be read ({reason(error)})", hint=_ACCESS)


def _input(address: str, meta: Any, *, named: bool) -> Input:  # noqa: ANN401 - obstore's
    tag = meta["e_tag"] or meta["version"]
    return Input(address, meta["size"], f"{tag}" if tag else "", named)


def fetch(found: Input, on_progress: Callable[[int], None] | None = None) -> tuple[BinaryIO, int]:
    """Return an object's contents as a seekable file, and their size.

    Raises:
        InputError: it cannot be fetched, or is not what was listed any more.
    """
    root, key = _split(found.name)
    file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 - the caller's
    size, obstore = 0, _obstore()
    try:
        for chunk in obstore.get(_store(root), key).stream(min_chunk_size=_CHUNK):
            file.write(chunk)
            size += len(chunk)
            if on_progress:
                on_progress(len(chunk))
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            raise InputError(f"{found.name}: is gone since it was listed") from None
        raise InputError(f"{found.name}: cannot be fetched ({reason(error)})") from None
    except Exception as error:
        raise InputError(
            f"{found.name}: cannot be fetched ({reason(error)})", hint=_ACCESS
        ) from None
    file.seek(0)
    return cast("BinaryIO", file), size


def reason(error: Exception) -> str:
    """Return what an error of a store says, without its source code and addresses."""
    text = str(error).split("\n\nDebug source:")[0]
    if code := re.search(r"<Code>([^<]*)</Code>.*?(?:<Message>([^<]*)</Message>|$)", text, re.S):
        return f"{code[1]}: {code[2] or ''}".strip(": ")[:200]
    text = re.sub(r"Error performing \w+ \S+ in [\d.]+[mµn]?s - ", "", text)
    return text.splitlines()[0].strip(" :")[:200] if text else type(error).__name__


def _split(address: str) -> tuple[str, str]:
    """Return the root of a store (`s3://bucket`), and the key within it."""
    parts = urlsplit(address, allow_fragments=False)
    if parts.scheme in ("http", "https"):
        path = parts.path.lstrip("/") + (f"?{parts.query}" if parts.query else "")
    else:  # a key may hold anything, also a question mark
        path = address.split("://", 1)[1].partition("/")[2]
    if parts.scheme in ("http", "https"):
        path = unquote(path)
    return f"{parts.scheme}://{parts.netloc}", path


@lru_cache(maxsize=64)
def _store(root: str) -> Any:  # noqa: ANN401 - obstore's
    from obstore.store import from_url

    if root.startswith("http://"):
        return from_url(f"{root}/", client_options={"allow_http": True})
    return from_url(f"{root}/")  # options would hide what the environment says


def _obstore() -> ModuleType:
    try:
        import obstore
    except ImportError:
        raise UsageError(
            "object stores need the package obstore",
            hint="pip install 'loganalyze[remote]'",
        ) from None
    module: ModuleType = obstore
    return module


_HINT = "s3://, gs://, az:// and http(s):// can; mount other stores as folders"
_ACCESS = "check the address, and the keys and endpoint in the environment"
