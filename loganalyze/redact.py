"""Keep secrets and personal data out of every output.

A server prints its API keys in clear in `server_args=`; request lines hold prompts; wrappers
and log names hold hosts and homes. What is removed is replaced by a word that says what stood
there, so that a reader can see the gap. Hosts and addresses get numbers in the order in which
they are met (`host-1`, `ip-2`), so that two of them stay apart and one stays one.

Why in two steps: arguments and quoted lines are cleaned where they are read, and tell names
(of hosts, users, keys); these are then taken out of every text of the finished report.
"""

from __future__ import annotations

import re
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from datetime import date
from hashlib import blake2b
from typing import TypeVar

import polars as pl

from loganalyze import formats
from loganalyze.model import Action, Check, Evidence, Finding, Report, Series, SessionData

REMOVED = "[removed]"
#: Addresses that get a number; further ones get a code, which needs no memory to stay the same
#: over a run, and whose key nobody keeps.
MAX_NUMBERED = 20_000
_USER = "[user]"

#: Arguments whose value is a secret, or free-form text that often carries one.
_SECRET_NAME = re.compile(
    r"(^|_)(api_?key|key|password|passwd|passphrase|secret|credentials?|auth|authorization"
    r"|token|cookie|bearer)$"
    r"|watermark_(key|config)|extra_config$|override_args$|^env(_vars)?$|headers$"
    r"|extra_metric_labels$|_labels$",
    re.IGNORECASE,
)
_KEEP_NAME = re.compile(r"(^|_)(eos|bos|pad|unk)_token$")
#: Arguments that hold hosts, with or without a port.
_HOST_NAME = re.compile(
    r"(^|_)(host(name)?s?|addr(ess)?(es)?|nodes?|peers?|endpoints?|ips?|masters?)$"
)

#: Between a name and its value: `=`, `:`, or the comma of a pair of strings, maybe of bytes.
_IS = r"\\{0,4}(?:['\"]?\s*[=:]|['\"]\s*,)\s*(?:b(?=\\{0,4}['\"]))?"
#: Names of secrets, whatever their value; and a value that says that none is set.
_NAMED = (
    r"(?:(?:api|access|secret|private|signing|encryption|auth|client|master)[_-]?"
    r"(?:key|token|secret)|secret|passw(?:or)?d|passphrase|(?<![a-z])pwd|_pass)"
    rf"{_IS}"
)
_UNSET = r"(?!(?:None|null|True|False)\b|\[removed\])"
#: Names of what people wrote.
_TEXT = r"(?:prompts?|text|inputs?|input_text|content|query)"
#: Where a string that people wrote starts, or a list or mapping of such.
_WRITTEN = re.compile(
    rf"(?i)(?:\b(?:{_TEXT}|messages?)\s?=|\b{_TEXT}:"
    rf"|['\"](?:{_TEXT}|messages|arguments)\\{{0,4}}['\"]\s?:)"
    r"\s?(?P<at>)(?:[\[({]\s?){0,4}b?\\{0,4}['\"]"
    rf"|\b{_TEXT} (?P<quoted>)(?=['\"])"
)
#: What says where such a value ends.
_MARKS = re.compile(r"\n|\\*['\"]|[\[\](){}]")
#: What to look for in text, and what to put in its place.
_SECRETS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}"), r"\1 " + REMOVED),
    (
        re.compile(
            rf"(?i)((?:proxy-)?authorization{_IS}\\{{0,4}}['\"]?"
            rf"(?:[a-z]+\s+)?+){_UNSET}[^\s'\",;\\]{{4,}}"
        ),
        r"\1" + REMOVED,
    ),
    (
        re.compile(rf"(?i)(cookie{_IS}['\"]?){_UNSET}[^'\"\n]{{4,512}}"),
        r"\1" + REMOVED,
    ),
    (re.compile(rf"(?i)({_NAMED}\\{{0,4}}['\"]){_UNSET}[^'\"\n\\]{{1,512}}"), r"\1" + REMOVED),
    (re.compile(rf"(?i)({_NAMED}){_UNSET}[^\s,;&)\]}}'\"\\]{{3,}}"), r"\1" + REMOVED),
    (  # names that also stand before numbers
        re.compile(
            r"(?i)(?<!#)((?:token|signature|credential|sig|auth)['\"]?\s*[=:]\s*['\"]?)"
            rf"{_UNSET}(?![\d.]+\b)[\w.~+/%-]{{4,}}"
        ),
        r"\1" + REMOVED,
    ),
    # What is asked of an address: signatures, users, prompts.
    (re.compile(r"(://[^\s?'\"<>]{1,2048}\?)(?!\[removed\])[^\s'\"<>]+"), r"\1" + REMOVED),
    (  # a prompt in a query, or in a call that a traceback quotes
        re.compile(r"(?i)([?&](?:prompt|text|input|query|q|key|messages?|content)=)[^&\s\"']+"),
        r"\1" + REMOVED,
    ),
    (  # the same without quotes; not a call that hands on what has that name
        re.compile(
            r"(?i)(\b(?:prompts?|input_text)(?:=(?!None\b|null\b|prompts?\b|input_text\b)"
            r"|: (?!\d+\b)))(?![\[({]|b?\\{0,4}['\"]|\[removed\])(?:(?<=: ).+|[^\s,)]+)"
        ),
        r"\1" + REMOVED,
    ),
    (re.compile(r"(\binput_value=).+?(?=, input_type=|$)"), r"\1" + REMOVED),  # of pydantic
    (  # in a sentence: what has a number is no word of it
        re.compile(
            r"(?i)(\b(?:(?:api|access)[ _-]?key|password|secret)(?: provided| given)?(?: is|:)?"
            r" ['\"]?)"
            r"(?=[^\s'\"]*\d)[^\s'\",;]{6,}"
        ),
        r"\1" + REMOVED,
    ),
    (  # of the environment, as a shell sets it or a message names it
        re.compile(
            r"(\b(?:export|setenv|set) [A-Z][A-Z0-9_]{0,64}_(?:KEY|TOKEN|SECRET|PASSWORD) +['\"]?"
            r"|\b[A-Z][A-Z0-9_]{0,64}_(?:KEY|TOKEN|SECRET|PASSWORD) +['\"]?(?=[^\s'\"]*\d))"
            r"[^\s'\",;]{6,}"
        ),
        r"\1" + REMOVED,
    ),
    (re.compile(r"\beyJ[\w-]{6,}\.[\w-]{6,}(?:\.[\w-]+)?"), REMOVED),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*", re.DOTALL), REMOVED),
    (
        re.compile(  # a name without bound would start over at every `--` of a long one
            rf"(?i)(--[\w-]{{0,64}}(?:key|token|password|secret)['\"]?[ =,]+){_UNSET}"
            r"(?:'[^'\n]{1,512}'?|\"[^\"\n]{1,512}\"?|[^\s'\"]{4,})"
        ),
        r"\1" + REMOVED,
    ),
    (
        re.compile(
            r"\b(?:(?:sk|hf|gh[oprsu]|github_pat|glpat|xox[abeprs]|nvapi|npm|pypi|r8)[-_]"
            r"|A[KS]IA|AIza|dapi|ya29\.)"
            r"[A-Za-z0-9_-]{8,}\b"
        ),
        REMOVED,
    ),
)
_ENVIRONMENT_USER = re.compile(
    r"(?<![A-Za-z])((?:USER|LOGNAME|USERNAME)\\{0,4}['\"]?\s?[=:]\s?['\"]?)[\w.-]{2,}"
)
#: The values of a query; one without a name is all value.
_QUERY = re.compile(r"(?<=[?&])[^=&\s]+(?=&|$)|(?<==)[^&\s]+")
_URL_USER = re.compile(r"(?<=://)[^/\s:@'\"\[\]]+(?::[^/\s@'\"]*)?@")
#: A home: the user's name goes with all that stands before it.
_HOME = re.compile(
    r"(?<![\w.~/-])[\w.-]++(?:/[\w.-]++){0,64}?/(?:homes?|Users)/(?P<d>[^/\\\s'\",:;|!]+)"
    r"|(?<![\w.~])(?:(?:/[\w.-]+){0,64}/(?:homes?|Users)/(?P<a>[^/\\\s'\",:;|!]+)"
    r"|(?:/[\w.-]+){1,64}/users/(?P<b>[^/\\\s'\",:;|!]+)"
    r"|[A-Za-z]:(?P<slash>\\+)Users(?P=slash)(?P<c>[^\\\s'\",:;|!]+)"
    r"|/root(?=[/\s'\",:;|!]|$))"
)
#: A user's folder on a disk of a cluster, but not one that all share.
_SCRATCH = re.compile(
    r"(?<=/scratch/)(?!(?:models?|data|datasets?|shared|cache|hf|hub|huggingface|logs?|tmp|weights"
    r"|checkpoints?|public|sglang|projects?)/)[\w.-]{2,64}(?=/)"
)
_ADDRESS = re.compile(
    r"(?<![\w.])(?!(?:0\.0\.0\.0|127\.0\.0\.1)(?![\w.]))(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\w)"
    r"|(?i:(?<![\w:])(?:[0-9a-f]{1,4}:){4,7}[0-9a-f]{1,4}(?![\w:]))"
    r"|(?i:(?<![\w:])(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}(?=:\d{1,5}(?![\w:])))"  # and a port
    r"|(?i:(?<![\w:])[0-9a-f]{4}:(?:[0-9a-f]{1,4}:){0,5}:(?:[0-9a-f]{1,4}:){0,5}[0-9a-f]{1,4}"
    r"(?![\w:]))"
)
#: The address of a client, and its port; the last group of an address is none.
_PORT = r"^([^:]*|\[.*\]|(?:[0-9A-Fa-f]{1,4}:){7}[0-9A-Fa-f]{1,4})(:\d+)$"
#: Where a host stands by what is around it; the group `host` is its name.
_HOST_PLACES = (
    re.compile(r"://(?:\[credentials\]@)?(?P<host>[\w-]+(?:\.[\w-]+)*)"),
    re.compile(r"(?<![\w.+/-])(?P<user>[\w.+-]+)@(?P<host>[\w-]+(?:\.[\w-]+)*)"),
    re.compile(
        r'(?i)"(?:(?:pod|host|node|machine)(?:_?name)?|(?:container|docker|_?machine|_?boot)_?id'
        r'|_hostname)\\*"+\s*:\s*(?:\{\s*\\*"+(?:name|id)\\*"+\s*:\s*)?\\*"+(?P<host>[\w.-]+)'
        r'|"container_?name\\*"+\s*:\s*\\*"+/?(?P<host2>(?=[\w.-]*[0-9])[\w.-]+)'
    ),
    re.compile(
        r"(?i)(?<![a-z-])(?:(?:host|node|pod|machine)(?:_?name)?|(?:master|head|server)_?addr(?:ess)?"
        r"|(?<=_)ip|mooncake_master)"
        r"\\{0,4}['\"]?\s?=\s?[\"']?(?P<host>[\w.-]*[a-z][\w.-]*)"
        r"|(?<![a-z-])(?:(?:host|node|pod|machine)_?name|master_addr)\\{0,4}['\"]?:\s?\\{0,4}[\"']?"
        r"(?P<host2>[\w.-]*[a-z][\w.-]*)"
    ),
    re.compile(r"(?i)node_?list\s?=\s?['\"]?(?P<host>[^\s'\"]+)"),
    # A peer: `[head]:29500`, `[head:4242]` of MPI, `('head', 29500)`, `connect to head:30000`.
    re.compile(r"\[(?P<host>[A-Za-z][\w.-]*)(?:\]:\d{2,5}(?!\d)|:\d{3,7}\])"),
    # In brackets, any two arguments of a call look like one: Python's quotes tell it apart, or
    # a word of connections before it.
    re.compile(r"(?<!\w)\((?P<quote>['\"])(?P<host>[A-Za-z][\w.-]*)(?P=quote), ?\d{2,5}\)"),
    re.compile(
        r"(?i)\b(?:connect\w*|address(?:es)?|peers?|sockets?|remote|bind\w*|listen\w*)\b"
        r"[^()\n]{0,60}(?<=\s)\((?P<host>[a-z][\w.-]*), ?\d{2,5}\)"
    ),
    re.compile(
        r"(?i)\bconnect(?:ed|ing|ion)? (?:to|with|from) (?P<host>[a-z][\w.-]*)(?=:\d{2,5}(?!\d))"
        r"|service not known: ['\"]?(?P<host2>[a-z][\w.-]*)"
    ),
    re.compile(  # where something was sent; a line of a source file has a number too
        r"(?i)\b(?:to|with|from|at|session|peer|server|host|node|instance|endpoint) "
        r"(?![\w.-]*\.(?:py|pyx|cc|cpp|cu|cuh|c|h|hpp|rs|go|log|out|err):)"
        r"(?P<host>[a-z][\w.-]*)(?=:\d{4,5}(?![\d.]))"
    ),
    re.compile(
        r"(?i)\b(?:resolve|server at) ['\"](?P<host>[a-z][\w.-]*)['\"]"
        r"|\bresolve host(?:name)?:? ['\"]?(?P<host2>[a-z][\w.-]*)"
    ),
    re.compile(  # of a command; not what a sentence says of the option
        r"(?i)--(?:[\w-]{0,64}-)?(?:host(?:name)?s?|addr(?:ess)?|nodes?|peers?|endpoints?|ip|master)"
        r"['\"]?[ =,]+['\"]?(?!(?:and|or|to|is|of|on|in|for|with|if|as)\b)"
        r"(?P<host>[a-z][\w.-]*)(?=:\d|['\"]|\s+-|\s*(?:\\|$))"
    ),
    re.compile(
        r"\b(?:srun|slurmstepd): error: (?P<host>[A-Za-z][\w.-]*): task"
        r"|\bSTEP \S+ ON (?P<host2>[A-Za-z][\w.-]*) "
    ),
    re.compile(r"(?<![\w.-])(?P<host>[A-Za-z][\w.-]*):\d+:\d+ \[\d+\] NCCL"),
)
#: The end of a full host name.
_DOMAIN = (
    r"(?:local|internal|lan|corp|intra|private|localdomain|svc|com|net|org|edu|gov|cloud|cn|de"
    r"|eu|uk|fr|jp|kr)(?![\w-]|\.[A-Za-z])"
)
#: Domains that are also names of Python modules: of a host only where it has a number.
_MODULE_DOMAIN = r"(?:io|ai|co|dev)(?![\w-]|\.[A-Za-z])"
#: Hosts by their own shape: pods of a deployment, cloud machines, cluster nodes, full names.
_HOST_SHAPES = re.compile(
    r"(?<![\w.-])(?:"
    rf"[a-z][a-z0-9-]*\.(?:[a-z0-9-]+\.)*{_DOMAIN}"
    rf"|(?=[a-z.-]*[0-9])[a-z][a-z0-9-]*\.(?:[a-z0-9-]+\.)*{_MODULE_DOMAIN}"
    r"|[a-z][a-z0-9-]*-(?=[a-z]*[0-9])[0-9a-z]{8,10}-[bcdfghjklmnpqrstvwxz2456789]{5}(?![\w-])"
    r"|ip-\d{1,3}-\d{1,3}-\d{1,3}-\d{1,3}(?:\.[\w.-]*\w)?(?![\w-])"
    r"|(?:[a-z]+[-_]?)?(?:node|nid|dgx|hgx|worker)[-_]?(?:[a-z]*\d*[-_])?\d{2,}(?![\w-]))",
    re.IGNORECASE,
)
#: `<node>_{prefill,decode,agg}_<id>.out`, as launchers of clusters name their logs.
_NODE_FILE = re.compile(
    r"(?P<host>[A-Za-z][\w.-]{0,252}?)_(?:prefill|decode|agg|frontend)_\w{1,64}\.\w{1,16}$"
)
#: `/var/log/containers/<pod>_<namespace>_...` and `/var/log/pods/<namespace>_<pod>_<uid>/...`.
_POD_FILE = re.compile(
    r"/containers/(?P<host>[\w.-]{1,253}?)_[\w.-]{1,253}_"
    r"|/pods/[\w.-]{1,253}?_(?P<host2>[\w.-]{1,253}?)_[0-9a-f-]{1,64}/"
)
#: What a log's name ends with.
_ENDING = re.compile(
    r"(?:\.(?:log|out|err|txt|jsonl?|ndjson|gz|bz2|xz|zst|lz4|zip|tar|tgz|\d{1,10})){1,6}$"
)
#: Public places that say nothing about the reader's site.
_PUBLIC = re.compile(
    r"(?i)(?:.*\.)?(?:huggingface\.co|hf\.co|github\.com|githubusercontent\.com|pytorch\.org"
    r"|python\.org|modelscope\.cn|nvidia\.com|sglang\.(?:ai|io)|readthedocs\.io)$"
)
_HERE = frozenset({"0.0.0.0", "127.0.0.1", "localhost", "::", "::1", "sha256", "", "none", "null"})
_OURS = re.compile(r"(?:host|ip)-\d+$")
#: A name that is no ordinary word, so that it can be taken out wherever it stands.
_TELLING = re.compile(r"(?=.*[\d.-])[\w.-]{4,}$")

#: What the program itself writes, whatever the log holds.
_OWN_TEXTS: dict[type, frozenset[str]] = {
    Finding: frozenset({"code", "name", "why", "explained_by"}),
    Check: frozenset({"code", "name", "status"}),
    Evidence: frozenset({"unit"}),
    Action: frozenset({"flag"}),
}

#: Texts that hold nothing of the kind, such as most of the program's own: they are met again,
#: and to look through one takes 0.2 ms.
_CLEAN: set[str] = set()
_REMEMBERED = 4096

_T = TypeVar("_T")


class Redactor:
    """Takes out what must not be shown, and remembers what it took.

    One is used for all texts of an output, so that a host has one name in it.

    Attributes:
        keep: nothing is taken out (`--no-redact`).
        removed: what was taken out, by kind -> how often.
    """

    def __init__(self, *, keep: bool = False) -> None:
        self.keep = keep
        self.removed: Counter[str] = Counter()
        self._hosts: dict[str, str] = {}
        #: Hosts by the first part of their names, and how many hosts there are.
        self._short: dict[str, str] = {}
        self._numbers = 0
        self._addresses: dict[str, str] = {}
        self._key = secrets.token_bytes(16)
        self._names: dict[str, str] = {}
        #: Names that were given to logs, and how many asked for each.
        self._taken: dict[str, int] = {}
        self._exact = _Words()  # names of logs and values of secret arguments
        self._words = _Words()  # names of hosts and users

    # -- what a log holds -----------------------------------------------------------------

    def text(self, value: str) -> str:
        """Return a text without keys, hosts, addresses, user names and names learned before."""
        if self.keep or not value:
            return value
        value = self._exact.replace(value, self.removed)
        if value not in _CLEAN:
            clean = self._cleaned(value)
            if clean == value and len(_CLEAN) < _REMEMBERED:
                _CLEAN.add(value)
            value = clean
        return self._words.replace(value, self.removed)

    def _cleaned(self, value: str) -> str:
        """Return a text without what has the shape of a key, a host, an address or a user."""
        value = self._sub(_URL_USER, "[credentials]@", "credentials in URLs", value)
        value = self._unwritten(value)
        for pattern, replacement in _SECRETS:
            value = self._sub(pattern, replacement, "keys and passwords", value)
        value = self._sub(_ENVIRONMENT_USER, rf"\1{_USER}", "user names", value)
        value = _HOME.sub(self._home, value)
        value = self._sub(_SCRATCH, _USER, "user names", value)
        for pattern in _HOST_PLACES:
            value = pattern.sub(self._host_in, value)
        value = _HOST_SHAPES.sub(lambda m: self._host(m[0]), value)
        return _ADDRESS.sub(lambda m: self._numbered(m[0]), value)

    def line(self, value: str) -> str:
        """Return a line of a log as `text` does, and without the host its wrapper names."""
        if self.keep:
            return value
        head, pos = [], 0
        while pos < len(value):
            _, match = next(formats.wrappers_at(value, pos, transport=True), (None, None))
            if match is None:
                break
            head.append(self._wrapper(match))
            pos = match.end()
        return self.text("".join(head)) + self.text(value[pos:]) if head else self.text(value)

    def _wrapper(self, match: re.Match[str]) -> str:
        """Return what stands before a line with the host in it replaced."""
        stream = match.groupdict().get("stream") or ""
        host = re.split(r"[\s/]", stream)[0]
        if not host or "pid=" in stream or re.fullmatch(r"(?:rank|default)?\d+", host):
            return match[0]
        at = match.start("stream") - match.start()
        writer = stream.split(" ")[0]
        first, *others = writer.split("/")
        parts = [self._host(first), *(self._host(p) if _TELLING.match(p) else p for p in others)]
        return match[0][:at] + "/".join(parts) + match[0][at + len(writer) :]

    def args(self, values: Mapping[str, object]) -> tuple[dict[str, object], list[str]]:
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
            clean = value if self.keep else self._argument(name, value)
            if clean != value and (_SECRET_NAME.search(name) or _HOST_NAME.search(name)):
                removed.append(name)
                self.removed[f"server argument {name}"] += 1
            kept[name] = clean
        return kept, removed

    def _argument(self, name: str, value: object) -> object:
        if value in (None, "", "{}", (), [], {}) or isinstance(value, bool | int | float):
            return value
        if _SECRET_NAME.search(name) and not _KEEP_NAME.search(name):
            if isinstance(value, str) and re.fullmatch(r"\S{8,200}", value):
                self._exact.add(value, REMOVED, "keys and passwords")
            return REMOVED
        if isinstance(value, str):
            if _HOST_NAME.search(name):
                return re.sub(
                    r"(?<![\w.:/-])[A-Za-z][\w-]*(?:\.[\w-]+)*(?=$|:\d|,|\s)",
                    lambda m: self._host(m[0]),
                    self.text(value),
                )
            return self.text(value)
        if isinstance(value, Mapping):
            return {str(k): self._argument(str(k), v) for k, v in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [self._argument(name, v) for v in value]
        return self.text(repr(value))

    def session(self, data: SessionData) -> SessionData:
        """Return a session whose server arguments hold no secret: before a rule sees them."""
        args, removed = self.args(data.session.config.args)
        config = replace(data.session.config, args=args, args_removed=tuple(removed))
        return replace(data, session=replace(data.session, config=config))

    # -- names of logs --------------------------------------------------------------------

    def name(self, source: str) -> str:
        """Return a log's name without home and host; two logs never get one name.

        The last part stays as it is but for a host in it, so that the file can be found.
        """
        if self.keep:
            return source
        if source not in self._names:
            for pattern in (_POD_FILE, _NODE_FILE):
                for match in pattern.finditer(source):
                    self._learned(next(g for g in match.groupdict().values() if g))
            end = _ENDING.search(source)
            stem = source[: end.start()] if end else source
            known = clean = self.text(stem) + source[len(stem) :]
            n = self._taken.get(known, 0)
            while clean in self._taken:
                n += 1
                clean = f"{known} ({n})"
            self._taken[known], self._taken[clean] = max(n, 1), max(self._taken.get(clean, 0), 1)
            self._names[source] = clean
            if clean != source:
                self._exact.add(source, clean)
        return self._names[source]

    # -- a whole report -------------------------------------------------------------------

    def report(self, report: Report) -> Report:
        """Return a report without what must not be shown; it says what was taken out."""
        if self.keep:
            return replace(report, redacts=False)
        for name in (*(s.name for s in report.sources), *(u.name for u in report.unreadable)):
            self.name(name)
        clean = self.whole(replace(report, redacted={}))
        return replace(clean, redacted=dict(sorted(self.removed.items())))

    def whole(self, value: _T) -> _T:
        """Return any value of model.py with every text in it cleaned that may hold a log's."""
        out: object = value
        if self.keep or value is None or isinstance(value, int | float | date):
            return value
        if isinstance(value, str):
            out = self._names.get(value) or self.text(value)
        elif isinstance(value, Series):  # numbers but for its name
            out = replace(value, source=self.name(value.source))
        elif is_dataclass(value) and not isinstance(value, type):
            own = _OWN_TEXTS.get(type(value), ())
            said = [f.name for f in fields(value) if f.name not in own]
            out = replace(value, **{name: self.whole(getattr(value, name)) for name in said})
        elif isinstance(value, Mapping):
            out = {k: self.whole(v) for k, v in value.items()}
        elif isinstance(value, Sequence):
            items = [self.whole(v) for v in value]
            out = items if isinstance(value, list) else tuple(items)
        return out  # type: ignore[return-value]

    def run(self, row: Mapping[str, object]) -> dict[str, object]:
        """Return a run of a scan (a row of its dataset) without what must not be shown.

        A host that only names a folder is kept if it is an ordinary word; one that a wrapper
        names is not.
        """
        clean: dict[str, object] = {}
        host, log = row.get("host"), str(row.get("log") or "")
        if isinstance(host, str) and not self.keep:
            clean["host"] = self._writer(host, log)
        if isinstance(row.get("log"), str):
            clean["log"] = self.name(log)
        return {k: clean[k] if k in clean else self.whole(v) for k, v in row.items()}

    def _writer(self, name: str, log: str) -> str:
        """Return what is shown of the host of a run; a wrapper names a process or file too."""
        folder, _, file = name.rpartition("/")
        if folder and name not in log and (name[0] in "/.~" or _ENDING.search(file)):
            return (
                f"{self._host(folder)}/{self.text(file)}"  # of another machine, as grep names it
            )
        words = [
            self._host(word)
            if (_TELLING.match(word) and re.search(r"[A-Za-z]", word))
            or (not k and word and name not in log)
            else word
            for k, word in enumerate(re.split(r"([\s/]+)", name))
        ]
        return self.text("".join(words))

    def frame(self, table: pl.DataFrame) -> pl.DataFrame:
        """Return a frame of records without what must not be shown in its texts."""
        if self.keep:
            return table
        columns = []
        for name in ("source", "traceback", "message", "client", "path"):
            if name not in table.columns or table[name].null_count() == table.height:
                continue
            clean = {"source": self.name, "client": self._client, "path": self._path}.get(
                name, self.line
            )
            values = table[name]
            if name == "client":  # many ports of few addresses
                values = values.str.replace(_PORT, "$1")
            known = {v: clean(v) for v in values.unique(maintain_order=True).drop_nulls()}
            out = values.replace_strict(known, default=None, return_dtype=pl.String)
            if name == "client":
                out = out + table[name].str.extract(_PORT, 2).fill_null("")
            columns.append(out.alias(name))
        return table.with_columns_seq(columns)

    # -- what stands in the place ---------------------------------------------------------

    def _unwritten(self, value: str) -> str:
        """Return a text without the strings, lists and mappings of what people wrote."""
        out, done = [], 0
        while match := _WRITTEN.search(value, done):
            plain = match["quoted"] is not None  # a word, and behind it a sentence or a name
            start = match.start("quoted" if plain else "at")
            end = _value_end(value, start)
            out.append(value[done:start])
            done = end
            if plain and " " not in value[start:end]:
                out.append(value[start:end])
            else:
                out.append(REMOVED)
                self.removed["prompts"] += 1
        return "".join([*out, value[done:]])

    def _sub(self, pattern: re.Pattern[str], replacement: str, what: str, value: str) -> str:
        value, times = pattern.subn(replacement, value)
        if times:
            self.removed[what] += times
        return value

    def _host(self, name: str) -> str:
        """Return what stands in the place of a host."""
        if _ADDRESS.fullmatch(name):
            return self._numbered(name)
        called = self._learned(name)
        if called != name:
            self.removed["host names"] += 1
        return called

    def _learned(self, name: str) -> str:
        """Return what a host is called here, and know it from now on wherever it stands."""
        low = name.lower().rstrip(".")
        if low in _HERE or _OURS.match(low) or _PUBLIC.match(low):
            return name
        short = low.partition(".")[0]
        if low not in self._hosts:
            same = self._short.get(low) or self._hosts.get(short)
            if same is None:
                self._numbers += 1
            self._hosts[low] = same or f"host-{self._numbers}"
            self._short.setdefault(short, self._hosts[low])
            for word in (name, name.partition(".")[0]):
                if _TELLING.match(word):
                    self._words.add(word, self._hosts[low], "host names")
        return self._hosts[low]

    def _host_in(self, match: re.Match[str]) -> str:
        """Return a match with the host in it replaced, and a user before it."""
        group = next(k for k in ("host", "host2") if match.groupdict().get(k))
        at, name = match.start(group), match[group]
        head = match[0][: at - match.start()]
        if match.groupdict().get("user"):
            head = f"{_USER}@"
            self.removed["user names"] += 1
        return head + self._host(name) + match[0][at - match.start() + len(name) :]

    def _client(self, client: str) -> str:
        """Return what `line` does of the client of a request, of which there may be millions."""
        return self._numbered(client) if _ADDRESS.fullmatch(client) else self.line(client)

    def _path(self, path: str) -> str:
        """Return a path of a request without what was asked for behind it."""
        before, mark, query = path.partition("?")
        clean = self._sub(_QUERY, REMOVED, "values in URLs", mark + query)
        return self.line(before + clean)

    def _numbered(self, address: str) -> str:
        self.removed["IP addresses"] += 1
        low = address.lower()
        if low not in self._addresses:
            if len(self._addresses) >= MAX_NUMBERED:
                return f"ip-{blake2b(low.encode(), digest_size=6, key=self._key).hexdigest()}"
            self._addresses[low] = f"ip-{len(self._addresses) + 1}"
        return self._addresses[low]

    def _home(self, match: re.Match[str]) -> str:
        user = match["a"] or match["b"] or match["c"] or match["d"]
        if user and re.fullmatch(r"[\w.-]{3,}", user):
            self._words.add(f"/{user}/", f"/{_USER}/", "user names")
        self.removed["home folders"] += 1
        return "~"


def _value_end(text: str, start: int) -> int:
    """Return where a value ends that Python or JSON printed; at the end of its line at last.

    A quote that has more backslashes before it than the one that opened its string is part of it.
    """
    opener, depth = "", 0
    for mark in _MARKS.finditer(text, start):
        found = mark[0]
        if found == "\n":
            return mark.start()
        if opener:
            if found != opener:
                continue
            opener = ""
        elif found[-1] in "'\"":
            opener = found
        else:
            depth += 1 if found in "[({" else -1
        if not opener and depth <= 0:
            return mark.end() if depth == 0 else mark.start()
    return len(text)


class _Words:
    """Words that are replaced wherever they stand by themselves, the longest first.

    An archive has thousands of names, so a text is not searched for each: where one of its runs
    of letters is the first of some words, what stands there in their lengths is looked up.
    """

    def __init__(self) -> None:
        self._instead: dict[str, tuple[str, str]] = {}
        #: First run of letters -> how far into its words it stands, and how long they are.
        self._by_run: dict[str, list[tuple[int, int]]] = {}
        #: Words that may begin or end inside a run.
        self._odd: list[str] = []

    def add(self, word: str, instead: str, what: str = "") -> None:
        """Learn a word, what stands in its place, and what it is called (empty: no count)."""
        if word in self._instead:
            return
        self._instead[word] = (instead, what)
        run = _RUN.search(word)
        if run is None or word[0] == "-" or word[-1] == "-":
            self._odd.append(word)
            self._odd.sort(key=len, reverse=True)
            return
        shapes = self._by_run.setdefault(run[0], [])
        if (shape := (run.start(), len(word))) not in shapes:
            shapes.append(shape)
            shapes.sort(reverse=True)

    def replace(self, value: str, removed: Counter[str]) -> str:
        """Return the text without the words, and count them."""
        for word in self._odd:
            instead = self._instead[word][0].replace("\\", r"\\")
            value, times = re.subn(_alone(word), instead, value)
            self._count(word, times, removed)
        if not self._by_run:
            return value
        out, end = [], 0
        for run in _RUN.finditer(value):
            for lead, length in self._by_run.get(run[0], ()):
                start = run.start() - lead
                word = value[max(start, 0) : start + length]
                if start >= end and word in self._instead and _stands_alone(word, value, start):
                    out += [value[end:start], self._instead[word][0]]
                    end = start + len(word)
                    self._count(word, 1, removed)
                    break
        return "".join([*out, value[end:]])

    def _count(self, word: str, times: int, removed: Counter[str]) -> None:
        what = self._instead[word][1]
        if what and times:
            removed[what] += times


_RUN = re.compile(r"[A-Za-z0-9-]+")


def _stands_alone(word: str, value: str, start: int) -> bool:
    """Whether a word at a place of a text is no part of a longer one."""
    end = start + len(word)
    before = word[0].isalnum() and start and _RUN.match(value[start - 1])
    return not before and not (word[-1].isalnum() and _RUN.match(value[end : end + 1]))


def _alone(word: str) -> str:
    """Return a pattern for a word that is no part of a longer one."""
    before = r"(?<![A-Za-z0-9-])" if word[0].isalnum() else ""
    after = r"(?![A-Za-z0-9-])" if word[-1].isalnum() else ""
    return before + re.escape(word) + after
