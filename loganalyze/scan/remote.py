"""Logs in object stores and on web servers, read through obstore.

An address names a store and what to read from it: `s3://bucket/logs/` (all below),
`s3://bucket/logs/**/*.log` (a pattern), `s3://bucket/one.log`. Keys, regions and endpoints
come from the environment, as each store's own tools take them (AWS_*, GOOGLE_*, AZURE_*).

An http address may give access itself, by a signature in its query or by a user and password.
Those are used and never kept: an input's name is the address without them (`public`).

Why each object is fetched once, whole, to a temporary file (2026-11): a log is read for its
records, then hashed, then quoted. Reading it three times over a network costs more than the
file, and the file is gone when the log is done.
"""

from __future__ import annotations

import base64
import fnmatch
import re
import tempfile
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, BinaryIO, cast
from urllib.parse import unquote, urlsplit

from loganalyze import redact
from loganalyze.errors import InputError, UsageError
from loganalyze.scan import inputs
from loganalyze.scan.inputs import Input

if TYPE_CHECKING:
    from types import ModuleType

#: Objects up to this size are held in memory and not in a file.
_IN_MEMORY = 1 << 24
_CHUNK = 1 << 22
SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss", "azure", "adl", "http", "https")
_WEB = ("http", "https")
#: What marks a signed address, and what still names its object beside the path.
_SIGNATURE = re.compile(r"(?i)(x-[a-z]+-)?signature|sig")
_VERSIONS = ("versionid", "generation", "snapshot")
#: A long value without a dot or a slash names no log.
_OPAQUE = re.compile(r"[\w~+=%:-]{24,}")


def find(address: str) -> Iterator[Input]:
    """Yield the objects that an address names; one with an error if there are none."""
    scheme = address.partition("://")[0].lower()
    if scheme not in SCHEMES:
        error = f"{scheme}:// is no store that can be read"
        yield Input(public(address), error=error, hint=_HINT)
        return
    if scheme in _WEB:
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
        error_ = f"cannot be listed ({reason(error)})"
        yield Input(public(address), error=error_, hint=_access(address))
        return
    if not n:
        yield Input(public(address), error="no object there", hint="check the address")


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
    obstore, name = _obstore(), public(address)
    try:
        store, key = _opened(address)
        try:
            meta = obstore.head(store, key)
        except FileNotFoundError:
            raise
        except Exception:
            if not _is_web(address):
                raise
            # A signature is for one method, and that is GET; the body is not fetched.
            meta = obstore.get(store, key).meta
    except FileNotFoundError:
        return Input(name, error="no such object", hint="check the address")
    except Exception as error:  # the store's own library decides what it raises
        return Input(name, error=f"cannot be read ({reason(error)})", hint=_access(address))
    found = _input(name, meta, named=True)
    return found if name == address else found._replace(address=address)


def _input(address: str, meta: Any, *, named: bool) -> Input:  # noqa: ANN401 - obstore's
    tag = meta["e_tag"] or meta["version"]
    # A listing gives some stores' tags without the quotes that a head has.
    return Input(address, meta["size"], tag.strip('"') if tag else "", named)


def fetch(found: Input, on_progress: Callable[[int], None] | None = None) -> tuple[BinaryIO, int]:
    """Return an object's contents as a seekable file, and their size.

    Raises:
        InputError: it cannot be fetched, or is not what was listed any more.
    """
    address = found.address or found.name
    file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 - the caller's
    size, obstore = 0, _obstore()
    try:
        store, key = _opened(address)
        for chunk in obstore.get(store, key).stream(min_chunk_size=_CHUNK):
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
            f"{found.name}: cannot be fetched ({reason(error)})", hint=_access(address)
        ) from None
    file.seek(0)
    return cast("BinaryIO", file), size


def ends(found: Input, size: int) -> tuple[bytes, bytes]:
    """Return the first and the last `size` bytes of an object; nothing where it fails."""
    obstore, length = _obstore(), min(size, found.size)
    try:
        store, key = _opened(found.address or found.name)
        first = bytes(obstore.get_range(store, key, start=0, length=length))
        last = bytes(obstore.get_range(store, key, start=found.size - length, length=length))
    except Exception:  # it is read later, and says then what is wrong
        return b"", b""
    return first, last


def public(address: str) -> str:
    """Return an address without what gives access, as it may be shown and kept.

    Of a signed address only what names the object is left, so it is the same input when it is
    signed again. In other queries secrets are known by their names or by their look.
    """
    parts = urlsplit(address, allow_fragments=False)
    user, _, host = parts.netloc.rpartition("@")
    netloc = host if user and (_is_web(address) or ":" in user) else parts.netloc
    if not _is_web(address):  # a key may hold anything, also a question mark
        return address.replace(parts.netloc, netloc, 1)
    query = [tuple(pair.partition("=")[::2]) for pair in parts.query.split("&") if pair]
    if any(_SIGNATURE.fullmatch(name) for name, _ in query):
        query = [(name, value) for name, value in query if name.lower() in _VERSIONS]
    said = "&".join(f"{name}={_public_value(name, value)}" for name, value in query)
    path = parts.path.partition("#")[0]
    return f"{parts.scheme}://{netloc}{path}" + (f"?{said}" if said else "")


def _public_value(name: str, value: str) -> str:
    if redact.Redactor().args({name: unquote(value)})[1]:
        return redact.REMOVED
    if _OPAQUE.fullmatch(unquote(value)):  # its hash still tells one object from another
        return f"[removed {inputs.digest([value])[:8]}]"
    return value


def reason(error: Exception) -> str:
    """Return what an error of a store says, without its source code and addresses."""
    text = str(error).split("\n\nDebug source:")[0]
    if code := re.search(r"<Code>([^<]*)</Code>.*?(?:<Message>([^<]*)</Message>|$)", text, re.S):
        return f"{code[1]}: {code[2] or ''}".strip(": ")[:200]
    text = re.sub(r"Error performing \w+ \S+ in [\d.]+[mµn]?s(, after [^-]*)? +- ", "", text)
    text = re.sub(r"(?i)\bhttps?://\S+", lambda url: public(url[0]), text)
    return text.splitlines()[0].strip(" :")[:200] if text else type(error).__name__


def _is_web(address: str) -> bool:
    return address.partition("://")[0].lower() in _WEB


def _split(address: str) -> tuple[str, str]:
    """Return the root of a store (`s3://bucket`), and the key within it."""
    scheme, _, rest = address.partition("://")
    root, _, key = rest.partition("/")
    return f"{scheme}://{root}", key


def _opened(address: str) -> tuple[Any, str]:
    """Return a store, and the key of an object in it."""
    if _is_web(address):
        return _web(address), ""
    root, key = _split(address)
    return _store(root), key


@lru_cache(maxsize=64)
def _store(root: str) -> Any:  # noqa: ANN401 - obstore's
    from obstore.store import from_url

    return from_url(f"{root}/")  # options would hide what the environment says


@lru_cache(maxsize=64)
def _web(address: str) -> Any:  # noqa: ANN401 - obstore's
    """Return a store of one page: within a store a query would count as part of the name."""
    from obstore.store import HTTPStore

    parts = urlsplit(address)
    options: dict[str, Any] = {"allow_http": True}
    user, _, host = parts.netloc.rpartition("@")
    if user:
        packed = base64.b64encode(unquote(user).encode()).decode()
        options["default_headers"] = {"Authorization": f"Basic {packed}"}
    return HTTPStore.from_url(parts._replace(netloc=host).geturl(), client_options=options)


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
#: What each store takes its keys from, beside the identity that a machine in its cloud has.
_KEYS = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL",
    "gs": "GOOGLE_SERVICE_ACCOUNT (a key file), or GOOGLE_SKIP_SIGNATURE for public buckets",
    "az": "AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_KEY",
    "http": "a signed address may have expired",
}
_STORES = {"s3a": "s3", "https": "http"}


def _access(address: str) -> str:
    """Say what gives access to an address."""
    scheme = address.partition("://")[0].lower()
    scheme = _STORES.get(scheme, scheme)
    return f"check the address and what gives access: {_KEYS.get(scheme, _KEYS['az'])}"
