"""Keep secrets and personal data out of every output.

A server prints its API keys in clear in `server_args=`; request lines hold prompts. What is
removed is replaced by a word that says what stood there, so that a reader can see the gap.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

REMOVED = "[removed]"

#: Arguments whose value is a secret, or free-form text that often carries one.
_SECRET_NAME = re.compile(
    r"(^|_)(api_?key|key|password|passwd|passphrase|secret|credentials?|auth|authorization"
    r"|token|cookie|bearer)$"
    r"|watermark_(key|config)|extra_config$|override_args$|^env(_vars)?$|headers$"
    r"|extra_metric_labels$|_labels$",
    re.IGNORECASE,
)
_KEEP_NAME = re.compile(r"(^|_)(eos|bos|pad|unk)_token$")

#: What to look for in text, what to put in its place, and what to call it.
_RULES: tuple[tuple[re.Pattern[str], str, str], ...] = (
    (
        re.compile(r"(?<=://)[^/\s:@'\"]+(?::[^/\s@'\"]*)?@"),
        "[credentials]@",
        "credentials in URLs",
    ),
    (
        re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}"),
        r"\1 " + REMOVED,
        "keys and passwords",
    ),
    (
        re.compile(
            r"(?i)(?<!#)((?:api[_-]?key|access[_-]?key|secret|password|passwd|token|signature|credential|sig"
            r"|auth)['\"]?\s*[=:]\s*['\"]?)(?!None\b|null\b|True\b|False\b|[\d.]+\b)[\w.~+/%-]{4,}"
        ),
        r"\1" + REMOVED,
        "keys and passwords",
    ),
    (
        re.compile(r"\beyJ[\w-]{6,}\.[\w-]{6,}(?:\.[\w-]+)?"),
        REMOVED,
        "keys and passwords",
    ),
    (
        re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*", re.DOTALL),
        REMOVED,
        "keys and passwords",
    ),
    (
        re.compile(r"(?i)(--[\w-]*(?:key|token|password|secret)[ =]+)(?!\[removed\])[^\s'\"]{4,}"),
        r"\1" + REMOVED,
        "keys and passwords",
    ),
    (
        re.compile(r"\b(?:sk|hf|ghp|gho|glpat|xox[abp]|AKIA)[-_]?[A-Za-z0-9_-]{8,}\b"),
        REMOVED,
        "keys and passwords",
    ),
    (
        re.compile(
            r"(?<![\w.])(?!(?:0\.0\.0\.0|127\.0\.0\.1)(?![\w.]))(?:\d{1,3}\.){3}\d{1,3}(?![\w.])"
        ),
        "[ip]",
        "IP addresses",
    ),
    (
        re.compile(r"(?i)(?<![\w:])(?:[0-9a-f]{1,4}:){4,7}[0-9a-f]{1,4}(?![\w:])"),
        "[ip]",
        "IP addresses",
    ),
    (
        re.compile(r"(?<![\w.])(/home/|/Users/|C:\\Users\\)[^/\\\s'\"]+"),
        r"\1[user]",
        "user names in paths",
    ),
    (
        re.compile(r"(?<=://)(?!\[)(?!localhost\b)[\w-]+(?:\.[\w-]+)+"),
        "[host]",
        "host names in URLs",
    ),
)


def text(value: str, removed: Counter[str] | None = None) -> str:
    """Return `value` without addresses, credentials, host names in URLs and user names.

    Args:
        value: text of a log.
        removed: counts what was taken out, by name, where given.
    """
    for pattern, replacement, name in _RULES:
        value, times = pattern.subn(replacement, value)
        if removed is not None and times:
            removed[name] += times
    return value


def args(values: Mapping[str, object]) -> tuple[dict[str, object], list[str]]:
    """Return the server arguments without secrets, and the names that lost their value.

    Args:
        values: arguments as printed.

    Returns:
        The same names in the same order. Unset values (None, empty) are kept: that a key
        is not set is worth knowing and gives nothing away.
    """
    kept: dict[str, object] = {}
    removed: list[str] = []
    for name, value in values.items():
        clean = _clean(name, value)
        if clean != value:
            removed.append(name)
        kept[name] = clean
    return kept, removed


def _clean(name: str, value: object) -> object:
    if value in (None, "", "{}", (), [], {}) or isinstance(value, bool | int | float):
        return value
    if _SECRET_NAME.search(name) and not _KEEP_NAME.search(name):
        return REMOVED
    if name in ("host", "dist_init_addr", "nccl_init_addr") or name.endswith("_host"):
        return value if value in ("0.0.0.0", "127.0.0.1", "localhost", "::") else "[host]"
    if isinstance(value, str):
        return text(value)
    if isinstance(value, Mapping):
        return {str(k): _clean(str(k), v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_clean("", v) for v in value]
    return text(repr(value))
