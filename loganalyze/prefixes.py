"""What stands before a message: SGLang's own stamp, and what other programs put around it.

A line is peeled from the outside: wrappers by pattern (formats/prefix.toml), then a string of
JSON, CSV or logfmt by its key, then again what stands inside that string. What is left before
SGLang's stamp is described by its shape, and `House` tells whether that is how this log is
written, or a sentence that quotes a statistics line.

Why a house style (2026-11): `gpu-7 @server [stamp] Decode batch` is a wrapper and `user said:
[stamp] Decode batch` a prompt, and no pattern tells one from the other. But a wrapper stands
before every line, so what stands before some lines only is a quote.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from loganalyze import formats
from loganalyze.stamps import (
    ABBREVIATION,
    CLOCK,
    DATE,
    DATED,
    EPOCH,
    FRACTION,
    HALF_CLOCK,
    OTHER,
    WEEKDAY,
    ZONE,
    clock_of,
    like,
    minutes_of,
    moment_of,
    zone_within,
)
from loganalyze.tables import Table

#: SGLang's own stamp, `[2026-01-05 03:04:05`, ends here.
STAMP_END = 20
#: Text before a message that no wrapper explains is at most this long.
MAX_REST = 256
#: Strings in strings, deeper than any shipper nests them: a text of quotes.
_DEEPEST = 16
#: A style that fewer lines than one in so many have is none.
RARE = 50

#: So many lines of a style in a row are no quotes, whatever the others are, where none of the
#: others comes before, or behind, them ...
MANY = 8
#: ... and so many where some do.
LONG = 400

#: So many times as many lines of a style as of another quote none of them.
MOST = 8

#: In a chain: nothing of SGLang's own stands before the message.
BARE = "bare"
#: In a chain: before a shape or a key that is known from this log alone.
UNKNOWN = "? "

#: SGLang's own stamp and ranks; its opening bracket may be lost.
_MORE = r":?[0-9]| ?[AaPp][Mm]\b"
OWN = re.compile(
    rf"(?P<open>\[)?"
    rf"(?P<stamp>(?<=\[)(?:{OTHER}|{HALF_CLOCK})|(?:{DATE}[ T])?{CLOCK}{FRACTION}(?!{_MORE})"
    rf"|(?<=\[){EPOCH}(?=[0-9 ,|:\]]))(?:(?<=[0-9]{{13}})(?:[0-9]{{3}}){{1,2}})?"
    rf"(?: ?(?P<zone>{ZONE})(?=[\], |]))?"
    r"(?P<tags>(?:[ ,|]{1,3}(?:[A-Za-z_][\w.]*(?:-[0-9]+|\[[0-9]+\]|[=:][\w.-]+)?|[0-9]+))*)\] "
)
_RANK = re.compile(r"(?<![\w-])(DP|TP|PP|EP|ATTN_CP|MOE_DP)(-?[0-9]+)(?![\w-])")
_RANKS = re.compile(r"(?:[ ,|]{1,3}(?:DP|TP|PP|EP|ATTN_CP|MOE_DP)-?[0-9]+)+")
#: Ranks in a bracket without a stamp, as a logger of one's own prints them.
_RANK_TAG = re.compile(r"\[ *(?:(?:DP|TP|PP|EP|ATTN_CP|MOE_DP)-?[0-9]+(?:\]| [\w.:-]*\]| ))+")
#: Rank words right before a message: of a line whose stamp was cut off, as issues quote it, or
#: of a logger that prints them by themselves.
_RANKS_LAST = re.compile(r"(?<![\w-])\[?(?:(?:DP|TP|PP|EP|ATTN_CP|MOE_DP)-?[0-9]+[] ,:|]+)+$")
#: A level and a logger's name behind SGLang's own stamp.
_LEVEL = re.compile(r"(?:DEBUG|INFO|WARNING|ERROR)(?: [\w.]{1,60})?:? +")
#: A stamp of SGLang's in a bracket which a wrapper could have written, too.
_OWN_EPOCH = re.compile(rf"\[{EPOCH}(?:[0-9]{{3}}){{0,2}}\] (?:{_LEVEL.pattern})?")
GPU = re.compile(r"\[gpu(?:_id)?=([0-9]+)\] $")
_ANY_DATED = re.compile(
    rf"(?<![\d.])(?<!\d:){DATE}[ T_]{CLOCK}{FRACTION}(?!{_MORE})"
    rf"|(?<![\d./-])(?<!\d:)(?:(?<=\b[IWEF])|(?<![A-Za-z]))(?:{OTHER})(?!\d|:\d)"
)
_ANY_CLOCK = re.compile(rf"(?<![\d.-])(?<!\d:)(?:{HALF_CLOCK}|{CLOCK}{FRACTION}(?!{_MORE}))(?!\d)")
_ANY_EPOCH = re.compile(rf"(?<![\w.:/-]){EPOCH}(?=(?:[0-9]{{3}}){{0,2}}(?!\w|[.:][0-9]|[/-]))")
_ZONE = re.compile(rf" ?({ZONE})(?!\w|:[0-9])")
#: A message may follow a delimiter, but not stand in the middle of a sentence.
_DELIMITED = re.compile(r"(?:^|[|:\]>)\-\t\r\u2013\u2014\u2022\u00b7\u203a]|\w\.py:[0-9]+)\s*$")
#: A stamp and at most a host, a level and SGLang's module: a logger's line, as
#: `%(asctime)s %(levelname)s %(message)s` is, though nothing but a blank sets its message off.
_STAMPED = re.compile(
    rf"\s*(?:{WEEKDAY},? )?(?:{OTHER}|{HALF_CLOCK}|(?:{DATE}[ T])?{CLOCK}{FRACTION}|{EPOCH})"
    rf"(?: ?(?:{ZONE}|{ABBREVIATION})(?!\w))?"
    r"(?:\s+(?=[A-Za-z][\w.]*[0-9-])[\w.-]{1,64})?"
    r"(?:\s+\[?(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL)\]?)?(?:\s+sglang[.\w]{0,80})?\s+"
)
#: A date, or a number, and a clock: a stamp of any kind, and no word beside it.
_NUMERIC = re.compile(
    r"(?=[^:]{0,24}:[0-9]{2}:)[\s\d.,:;/|()\[\]+-]{5,48}(?:[AaPp][Mm]\b[\s|\])]*)?(?<=[\s|])"
)
_EPOCH = re.compile(
    r"""\\*["']+(?:ts|time|timestamp|created|@timestamp|date|timeUnixNano|"""
    r"""__REALTIME_TIMESTAMP)\\*["']+\s*:\s*"""
    r"""(?:\\*["']+)?([0-9]{10}(?:\.[0-9]+|[0-9]{3})?)[0-9]{0,6}(?![0-9])"""
)
#: Keys that name the writer of a line, by what they name, the most telling one first. All pods
#: of a deployment have the same containers, and hosts may run containers, or processes, of the
#: same name, so that it may take several of these to tell two writers apart.
_STREAM_KEYS = (
    ("pod_name", "podName", "PodName", "pod", "k8s.pod.name"),
    (
        "container_id",
        "_container_id",
        "CONTAINER_ID",
        "ContainerID",
        "ecs_task_arn",
        "logStreamName",
    ),
    ("logStream", "@logStream", "log_stream"),
    ("_PID",),
    (
        "container_name",
        "_container_name_",
        "_container_name",
        "containerName",
        "ContainerName",
        "CONTAINER_NAME",
        "container",
    ),
    ("namespace", "namespace_name", "k8s.namespace.name", "podNamespace", "PodNamespace"),
    ("_SYSTEMD_UNIT", "unit"),
    ("tag",),
    ("hostname", "hostName", "_HOSTNAME", "host", "Computer", "instance"),
    ("cluster_name",),
)
_KEY_KIND = {key: kind for kind, keys in enumerate(_STREAM_KEYS) for key in keys}
_POD, _ID, _CONTAINER, _NAMESPACE, _TAG, _CLUSTER = (
    _KEY_KIND[key]
    for key in ("pod", "container_id", "container", "namespace", "tag", "cluster_name")
)
#: Ends the name of a deployment's pod, which is nobody else's.
_RANDOM = re.compile(r"-[0-9a-f]{6,10}-[a-z0-9]{5}$")
_JSON_STREAM = re.compile(
    rf'\\*"+(?P<key>{"|".join(map(re.escape, _KEY_KIND))})\\*"+\s*(?::|,\s*\\*"+value\\*"+\s*:)\s*'
    r'(?:\{[^{}]{0,200}?\\*"+(?:name|id|stringValue)\\*"+\s*:\s*)?\\*"+(?P<name>[\w./@:-]+)'
)
#: The same without the name, in Python's and Polars' syntax.
_WRITER_KEYS = r'"(?:%s)\\*"+\s*[:,]'
_WRITER_KEY = re.compile(
    _WRITER_KEYS.replace("?:", "?P<key>", 1) % "|".join(map(re.escape, _KEY_KIND))
)
#: Before a tag that `docker run` was given; elsewhere one may mean anything.
_ATTRIBUTES = re.compile(r'\\*"+attrs\\*"+\s*:\s*\{[^{}]*$')
#: What tells the processes of one place apart: a pid in brackets, behind its name, or alone.
PROCESS = re.compile(r"\[[0-9]+\]|\bpid=[0-9]+|(?<=[ \0])[0-9]+(?= |$)")
#: A label of Loki's.
_LABEL = re.compile(rf'(?<![\w.])(?P<key>{"|".join(map(re.escape, _KEY_KIND))})="(?P<name>[^"]*)"')
#: Words of a request that was logged with its text: what follows may be anything.
_ECHO = re.compile(
    r"(?:Receive|Finish)(?: OpenAI)?: obj=|request\.(?:received|finished)|GenerateReqInput|"
    r"sampling_params|\binput_ids\b"
)

#: Keys under which loggers and shippers keep the line ...
_LOG_KEYS = frozenset(
    ("log", "message", "msg", "line", "MESSAGE", "Message", "@message", "textPayload", "_raw")
)
#: ... keys of a request: what stands under them, or beside some of them, may be anything ...
_PROMPT_KEYS = frozenset(
    re.findall(
        r"\w+",
        "obj out prompt prompts messages choices input inputs query question instruction outputs "
        "instructions completion request response output delta generated_text input_text args "
        "arguments parameters conversation conversations turns documents",
    )
)
#: ... and keys that hold the line with some shippers, a prompt elsewhere.
_PROMPT_LEAVES = _PROMPT_KEYS | {"text", "content", "body", "data", "value", "answer", "reply"}
_REQUEST_KEYS = frozenset(
    ("rid", "role", "obj", "out", "prompt", "messages", "choices", "max_tokens", "temperature")
)
#: Beside Docker's line, and that of most container loggers: it may stand among plain lines. An
#: object of nothing but a line may be anything that somebody printed.
_DOCKER = re.compile(
    r'\\*"+stream\\*"+\s*:\s*\\*"+std(?:err|out)\\*"|\\*"+(?:time|date|@timestamp)\\*"+\s*:\s*\\*"*[0-9]{4}'
)
#: With one of these beside it, `body` is the line of an OpenTelemetry record.
_OTEL = re.compile(
    r'(?i)\\*"+(?:severity_?(?:text|number)|(?:observed_?)?time_?unix_?nano|observed_?timestamp)'
    r'\\*"+\s*:'
)
#: A field of CloudWatch Insights' that holds the line.
_INSIGHTS = re.compile(r'\\*"field\\*"\s*:\s*\\*"@message\\*"\s*,\s*\\*"value\\*"')
#: Beside one of these, `content` is the line: log services of several clouds write it there.
_COLLECTED = re.compile(r"__\w+__(?::.*)?|_?(?:pod|container)_?[Nn]ame_?")
#: Words that announce somebody's text; `user=name` is a label.
_PROSE = re.compile(
    r"(?i)(?<![\w.@/-])(?:prompts?|user(?!=\\*\"?[\w.@-]+\\*\"?[\s,}])|assistant|human|"
    r"question|query|request|reply|inputs?|outputs?|text|content|completion|response|answer|"
    r"said|says|wrote|writes|asks|asked|sent|echo|instruction|quote|chat|conversation|payload|"
    r"body)(?![\w.@/-])"
)
_SENTENCE = re.compile(r"(?<![\w.@/-])[A-Za-z]+ [a-z]+ [a-z]+")
#: A logging format of the user's own, which names SGLang's module.
_SGLANG = re.compile(rf"[\[(]?{DATE}[ T]{CLOCK}\b.{{1,80}}\bsglang[.\w]*\b")
_NAME = re.compile(r"[A-Za-z0-9_](?:[\w.@/+:-]*\w)?")
_SHAPE_STAMP = re.compile(
    rf"(?:{DATED}|{HALF_CLOCK}|{CLOCK}(?:[.,][0-9]+)?)(?: ?(?:{ZONE})(?!\w))?"
)
#: What loggers print beside a stamp.
_LOGGER = re.compile(
    r"(?<![\w.])(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|sglang[.\w]{0,80})(?![\w.])"
    rf"|{ABBREVIATION}(?!\w)|{WEEKDAY}"
)
_CSV_CELL = re.compile(r'[^",;\t]*[,;\t] *')
_CSV_QUOTED = re.compile(r'"(?:[^"]|"")*" *[,;\t] *')
#: What differs between lines of one shape: numbers, and names made of them.
NUMBERS = re.compile(r"([0-9a-f]{8,}(?:-[0-9a-f]{4,})*|[0-9]+)")
_QUOTES = frozenset("\"'")
_LOOSE = re.compile(rf"{re.escape(UNKNOWN)}(?!(?:json|pairs|scalar|logger) )")


class Span(NamedTuple):
    """A piece of a line that varies. `name` is None where only its shape matters."""

    start: int
    end: int
    name: str | None
    pattern: str


@dataclass(frozen=True, slots=True)
class Prefix:
    """What stands before a message.

    Attributes:
        spans: the pieces to capture or to loosen, in order.
        values: what they hold here: `stamp`, `stream`, `gpu_id` and the ranks.
        clock: how the stamp is written; None without one.
        own: whether the stamp is SGLang's, not a wrapper's.
        zone: zone of the wrapper's clock as printed.
        wrapper_stamp: stamp of the wrapper, beside SGLang's own.
        quote: how the quotes around the message are written, where it is a value of JSON, of
            YAML, of a table or the like; empty where it stands by itself.
        text: SGLang's own part of it, as printed.
        chain: what the line is wrapped in, from the outside; empty for SGLang's own format,
            `BARE` last for a message without it. What may stand before some lines of a log
            only (Ray, a progress bar) is left out.
        place: what tells this writer from those elsewhere of the same name: its namespace, its
            host.
    """

    spans: tuple[Span, ...] = ()
    values: dict[str, str] = field(default_factory=dict)
    clock: str | None = None
    own: bool = False
    zone: str | None = None
    wrapper_stamp: str | None = None
    quote: str = ""
    text: str = ""
    chain: tuple[str, ...] = ()
    place: tuple[str, ...] = ()

    def in_place(self) -> Prefix:
        """Return the same with the place in the writer's name, for lines of this writer only."""
        name = " ".join((self.values["stream"], *self.place))
        spans = (
            Span(span.start, span.end, None, escape(self.values["stream"]))
            if span.name == "stream"
            else span
            for span in self.spans
        )
        return replace(self, spans=tuple(spans), values={**self.values, "stream": name})


class Style(NamedTuple):
    """How a record is wrapped.

    Attributes:
        chain: as in `Prefix`.
        shape: all of the text before SGLang's own stamp, names and numbers levelled.
    """

    chain: tuple[str, ...]
    shape: str


class House:
    """How the records of a log are written: the styles that its head shows.

    Without a record seen yet, every prefix that could be a wrapper's is believed.

    Attributes:
        size: bytes of the head that were looked at.
        since: number of the first line that this is told of; what stands above is believed.
    """

    def __init__(self) -> None:
        self._seen: Counter[Style] = Counter()
        self._places: dict[Style, tuple[int, int]] = {}
        self._believed: frozenset[tuple[str, ...]] = frozenset()
        self.size = self.since = 0

    def see(self, styles: Iterable[Style], size: int) -> None:
        """Take note of the styles of records in `size` more bytes of the head."""
        for style in styles:
            at = self._seen.total()
            self._places[style] = self._places.get(style, (at, at))[0], at
            self._seen[style] += 1
        self.size += size
        total = self._seen.total()
        common = [
            style
            for style, n in self._seen.items()
            if n * RARE >= total and not (n == 1 and total > MANY and self._places[style][0] == 0)
        ]  # the first line of a log may lack its start
        plain = [s for s in common if not any(self._quotes(s, other) for other in common)]
        known = [s for s in plain if not any(UNKNOWN in link for link in s.chain)]
        if known:
            known += [
                s
                for s in plain
                if s not in known and (self._is_apart(s, known) or self._is_most(s, known))
            ]
        self._believed = frozenset(style.chain for style in known or plain)

    def _quotes(self, style: Style, other: Style) -> bool:
        """Whether lines of a style quote records of another.

        A wrapper before all lines up to some line, or from there on, quotes nothing: the log was
        put together from what two collectors wrote.
        """
        if not _extends(style, other):
            return False
        return not (self._is_apart(style, [other]) or self._is_most(style, [other]))

    def _is_most(self, style: Style, others: Iterable[Style]) -> bool:
        """Whether far more lines are of a style than of any other: nobody quotes so much."""
        if self._seen[style] < MANY or any(map(_is_loose, style.chain)):
            return False
        return all(self._seen[style] >= MOST * self._seen[other] for other in others)

    def _is_apart(self, style: Style, others: Iterable[Style]) -> bool:
        """Whether all lines of a style stand before all of any other, or behind them."""
        if self._seen[style] < MANY or any(map(_is_loose, style.chain)):
            return False
        first, last = self._places[style]
        return all(
            last < self._places[other][0] or self._places[other][1] < first for other in others
        )

    def believes(self, chain: tuple[str, ...]) -> bool:
        """Whether a record of this log may stand behind such a prefix."""
        return (
            not chain
            or not self._believed
            or chain in self._believed
            or (*chain, BARE) in self._believed
        )

    def knows(self, chain: tuple[str, ...]) -> bool:
        """Whether records of this log were seen behind such a prefix, and are believed."""
        return chain in self._believed

    def refuses(self, chain: tuple[str, ...]) -> bool:
        """Whether such lines stood among those that are believed: they quote them."""
        mine = [self._places[s] for s in self._seen if s.chain in (chain, (*chain, BARE))]
        others = [self._places[s] for s in self._seen if s.chain in self._believed]
        return any(first < stop and start < last for first, last in mine for start, stop in others)

    def join(self, other: House, *, long: bool) -> None:
        """Believe also what another house does, of lines further down in the same log.

        Args:
            other: how those are written.
            long: whether there were `LONG` of them: then text that is not known is believed,
                too, but for a logger's stamp, behind which it says what others said.
        """
        self._believed |= {
            chain
            for chain in other._believed
            if not any(map(_is_loose, chain)) or (long and not any(map(_has_stamp, chain)))
            if not self.refuses(chain)
        }


def _is_loose(link: str) -> bool:
    """Whether a link is text that anybody could have written: no key, no logger's stamp alone."""
    return _LOOSE.match(link) is not None


def _has_stamp(link: str) -> bool:
    return _is_loose(link) and "0" in link


def _extends(style: Style, other: Style) -> bool:
    """Whether a line is written like the `other` and quotes a record behind that."""
    if style.chain == other.chain or not style.shape.startswith(other.shape):
        return False
    return style.shape != other.shape or len(style.chain) > len(other.chain)


def style_of(prefix: Prefix, before: str) -> Style:
    """Return how a record is wrapped, from its prefix and all of the text before it."""
    outer = before.rpartition(prefix.text)[0] if prefix.text else before
    return Style(prefix.chain, _shape(outer))


def _is_prose(text: str) -> bool:
    text = _SHAPE_STAMP.sub("0", text)
    return bool(_PROSE.search(text) or _SENTENCE.search(text))


def _shape(text: str) -> str:
    return re.sub(r"\s+", " ", _NAME.sub("w", _SHAPE_STAMP.sub("0", text))).lstrip()


def escape(text: str) -> str:
    """Escape `text` for both Python's and Polars' regular expressions."""
    return re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", text)


def spread(text: str) -> str:
    """Return a pattern for texts that differ from `text` in their numbers only."""
    parts = NUMBERS.split(text)
    out = []
    for k, part in enumerate(parts):
        if k % 2 == 0:
            out.append(escape(part))
        else:
            out.append("[0-9]+" if part.isdigit() else "[0-9a-f-]+")
    return "".join(out)


def whole(text: str) -> str:
    """Return a JSON string without halves of surrogate pairs, which nothing can write."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def unwrap(line: str) -> tuple[str | None, str]:
    """Take off what a container or a cluster puts before every line.

    Returns:
        What the wrapper says about the writer, and the text as the server printed it.
    """
    told, pos = list[str](), 0
    while pos < len(line) and not line.startswith('{"', pos):
        _, m = next(formats.wrappers_at(line, pos, transport=True), (None, None))
        if m is None:
            break
        told += [stream] if (stream := m.groupdict().get("stream")) else []
        pos = m.end()
    text = line[pos:]
    while text.startswith("{"):
        try:
            record = json.loads(text)
        except (ValueError, RecursionError):
            break
        said = next((record[k] for k in _LOG_KEYS if isinstance(record.get(k), str)), None)
        if said is None:
            break
        told += [stream] if (stream := _stream_of(record)) else []
        text = whole(said).rstrip("\n")
    return " ".join(told) or None, text


def _stream_of(record: dict[str, object], depth: int = 3) -> str | None:
    """Return what the fields of a record of JSON, or of an object in it, say about its writer."""
    inner = [v for v in record.values() if isinstance(v, dict)] if depth else []
    values = [(key, record[key]) for key in _KEY_KIND if key in record]
    told = [(key, v.get("name", v.get("id")) if isinstance(v, dict) else v) for key, v in values]
    names = [(_KEY_KIND[key], str(v)) for key, v in told if isinstance(v, str | int)]
    return " ".join(name for _, name in _telling(names)) or next(
        (found for v in inner if (found := _stream_of(v, depth - 1))), None
    )


def other_writers(line: str) -> str:
    """Return a pattern for lines of JSON with a key that names a writer and is not in `line`."""
    known = {m["key"] for m in _WRITER_KEY.finditer(line)}
    return _WRITER_KEYS % "|".join(re.escape(key) for key in _KEY_KIND if key not in known)


_Name = TypeVar("_Name", bound=tuple[Any, ...])


def _telling(names: Iterable[_Name]) -> list[_Name]:
    """Return the first of the names of each kind that it takes to tell a writer from others.

    A pod is one of its namespace, whatever host it runs on; when it starts a container again,
    that has another id, but is the same server. The id of a container alone is nobody else's.

    Args:
        names: a kind, an index of `_STREAM_KEYS`, first, and what it names last.
    """
    first: dict[int, _Name] = {}
    for name in names:
        first.setdefault(name[0], name)
    kinds = set(first)
    if _POD in first:
        kinds = {_POD, _CONTAINER}
        if not _RANDOM.search(first[_POD][-1]):
            kinds |= {_NAMESPACE, _CLUSTER}
    elif _ID in first:
        kinds = {_ID}
    return [first[kind] for kind in sorted(kinds & set(first))]


def is_request(text: str) -> bool:
    """Whether a text is of a request that was logged: what follows may be anything."""
    return _ECHO.search(text) is not None


def read_prefix(
    text: str,
    after: str = "",
    after_at: int = 0,
    table: Table | None = None,
    *,
    delimited: bool = True,
) -> Prefix | None:
    """Read what stands before a message.

    Args:
        text: the line up to its message.
        after: text behind the message, where a JSON wrapper may keep its stamp.
        after_at: where `after` starts, counted like `text`.
        table: the columns, where the line is a row of a table.
        delimited: whether text that no wrapper explains must set off a message without a stamp.

    Returns:
        None where the message is quoted text and not a record of the server's own.
    """
    if is_request(text):
        return None
    found = _Found(text)
    if not _peel(found, after):
        return None
    pos = found.pos
    gpu = GPU.search(text, pos)
    own = None if gpu else _find_own(text, pos)  # what stands before a GPU's tag is a wrapper's
    if own is not None and _ANY_DATED.search(text, own.end()):
        own = None  # so is what stands before a logger's stamp
    mark = own or gpu
    ranks = _RANKS_LAST.search(text, mark.end() if mark else pos)
    stop = ranks.start() if ranks else len(text)
    rest = text[pos : mark.start() if mark else stop]
    between = text[own.end() : stop] if own else ""
    bare = mark is None and not rest.strip()
    open_end = delimited and mark is None and not (ranks and "]" in ranks[0])
    if rest and not bare and not found.take_shape(rest, delimited=open_end):
        return None
    if between and _LEVEL.fullmatch(between):
        found.chain.append("level")
    elif between and not found.take_shape(between, delimited=True):
        return None
    found.rests.append((pos, pos + len(rest)))
    _read_stamps(found, own, after, after_at)
    if table is not None:
        line = text + " " * max(0, after_at - len(text)) + after
        cells = table.writer_cells(line)
        told = _telling((_KEY_KIND[k], a, b, line[a:b]) for k, a, b in cells)
        # A wrapper may have found the name already.
        found.writers += [cell[1:] for cell in told if cell[1:] not in found.writers]
    if own is not None:
        found.take_ranks(own.start("tags"), own.end("tags") + 1)
    elif mark is not None:
        found.add("gpu_id", mark.span(1), "[0-9]+", mark[1])
    elif not ranks and (tags := list(_RANK_TAG.finditer(text, pos))):
        found.take_ranks(*tags[-1].span())
    if ranks and mark is own:
        found.take_ranks(*ranks.span())
        if own is not None:
            found.chain.append("ranks")
    place = found.take_writer()
    stamp = found.values.get("stamp")
    if bare:
        found.chain.append(BARE)
    return Prefix(
        spans=tuple(sorted(found.spans)),
        values=found.values,
        clock=clock_of(stamp) if stamp else None,
        own=own is not None,
        zone=found.zone,
        wrapper_stamp=found.wrapper_stamp,
        quote=found.levels[-1].quote if found.levels else "",
        text=text[mark.start() : mark.end()] if mark else "",
        chain=tuple(found.chain),
        place=place,
    )


class _Level(NamedTuple):
    r"""A quoted string around the message.

    Attributes:
        start: where the JSON, the table row or the pairs start that it is a part of.
        content: where its own text starts.
        quote: how the quotes around it are written, `\"` inside another string.
    """

    start: int
    content: int
    quote: str


@dataclass(slots=True)
class _Found:
    """What was found of the prefix `text` so far; `pos` is how far it was read.

    `rests` are the places of text that no wrapper explains.
    """

    text: str
    pos: int = 0
    spans: list[Span] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)
    chain: list[str] = field(default_factory=list)
    levels: list[_Level] = field(default_factory=list)
    rests: list[tuple[int, int]] = field(default_factory=list)
    stamps: list[tuple[int, int, str | None]] = field(default_factory=list)
    writers: list[tuple[int, int, str]] = field(default_factory=list)
    zone: str | None = None
    wrapper_stamp: str | None = None

    def add(self, name: str, extent: tuple[int, int], pattern: str, value: str) -> None:
        self.spans.append(Span(*extent, name, pattern))
        self.values[name] = value

    def take_loose(self, wrapper: re.Match[str], loose: str) -> None:
        """Take a wrapper of which some parts differ from line to line, others name the writer."""
        at, before, base = wrapper.start(), r"\{(?:[^{}]*[ ,])?", wrapper.start()
        labels = _telling(
            (_KEY_KIND[m["key"]], base + m.start("name"), base + m.end("name"), m["name"])
            for m in _LABEL.finditer(wrapper[0])
        )
        self.writers += [label[1:] for label in labels]
        for _, start, stop, _ in sorted(labels, key=lambda label: label[1]):
            key = re.search(r'\w+="$', self.text[at:start])
            self.spans.append(Span(at, start, None, before + escape(key[0] if key else "")))
            at, before = stop, r'"[^{}]*?[ ,]'
        rest = loose.removeprefix(r"\{") if at > base else loose
        self.spans.append(Span(at, wrapper.end(), None, rest))

    def take_writer(self) -> tuple[str, ...]:
        """Take what names the writer; return what else tells it from others of that name."""
        for start, stop, name in self.writers[:1]:
            self.add("stream", (start, stop), _stream_pattern(name), name)
        for start, stop, name in self.writers[1:]:
            self.spans.append(Span(start, stop, None, escape(name)))
        return tuple(name for *_, name in self.writers[1:])

    def take_ranks(self, start: int, end: int) -> None:
        """Take the ranks named between two places."""
        for rank in _RANK.finditer(self.text, start, end):
            pattern = "-[0-9]+" if rank[2] < "0" else "[0-9]+"  # the sign tells a release
            self.add(f"{rank[1].lower()}_rank", rank.span(2), pattern, rank[2])

    def take_shape(self, rest: str, *, delimited: bool) -> bool:
        """Describe text that no wrapper explains; whether it may be a wrapper's at all."""
        if not rest.strip():
            return True
        if len(rest) > MAX_REST or _QUOTES & set(rest) or _is_prose(rest):
            return False
        if "\ufffd" in rest and not re.search(r"\w{2}", rest):
            return True  # damaged bytes
        is_stamp = _NUMERIC.fullmatch(rest) is not None
        if delimited and not (is_stamp or _DELIMITED.search(rest) or _STAMPED.fullmatch(rest)):
            return False
        if logger := _SGLANG.search(rest):  # a logging format of the user's own
            rest = rest[: logger.start()]
            if not rest.strip():
                return True
        said, n_stamps = _SHAPE_STAMP.subn(" ", rest)
        letters = re.search(r"[^\W\d_]", _LOGGER.sub(" ", said))
        kind = "logger " * (is_stamp or (n_stamps > 0 and letters is None))
        self.chain.append(f"{UNKNOWN}{kind}{_shape(rest)}")
        return True


def _peel(found: _Found, after: str) -> bool:
    """Take off wrappers and quotes; False where the quotes are a request's."""
    csv, slashes, in_docker = False, 0, False
    while True:
        _read_wrappers(found)
        quote = "\\" * slashes + ('""' if csv else '"')
        level, kind, keys, beside = _open_string(found, quote, csv=csv)
        if level is None:
            return not kind
        if len(found.levels) == _DEEPEST:
            return False
        if kind == "json" and keys:
            beside |= _keys_behind(after, level.quote)
        if not _may_log(keys, beside, found.text[level.start : level.content] + after):
            return False
        found.levels.append(level)
        docker = keys == ("log",) and _DOCKER.search(found.text[level.start :] + after)
        if docker and not in_docker:  # what it holds may be another program's JSON
            in_docker = True
        else:
            unknown = UNKNOWN * (bool(keys) and keys[-1] not in _LOG_KEYS)
            found.chain.append(f"{unknown}{kind} {'.'.join(keys)}")
        found.pos = level.content
        while re.match(r"\\+[nrt]|\s", found.text[found.pos : found.pos + 4]):
            found.pos += len(re.match(r"\\+[nrt]|\s", found.text[found.pos :])[0])  # type: ignore[index]
        if kind == "csv":
            csv = True
        elif level.quote != "'":
            slashes = 2 * slashes + 1


def _read_wrappers(found: _Found) -> None:
    """Read the known wrappers where the prefix was read up to."""
    text = found.text
    while found.pos < len(text):
        for wrapper, m in formats.wrappers_at(text, found.pos):
            if not (wrapper.loose and _PROSE.search(m[0])):
                break
        else:
            return
        groups = m.groupdict()
        if groups.get("open") and _OWN_EPOCH.fullmatch(text, found.pos):
            return
        if wrapper.loose:
            found.take_loose(m, wrapper.loose)
        elif groups.get("stream"):
            found.writers.append((*m.span("stream"), groups["stream"]))
        if groups.get("stamp"):
            zone = groups.get("zone") or zone_within(groups["stamp"])
            found.stamps.append((*m.span("stamp"), zone))
        if not wrapper.some_lines:
            found.chain.append(wrapper.name)
        found.pos = m.end()


def _open_string(
    found: _Found, quote: str, *, csv: bool
) -> tuple[_Level | None, str, tuple[str, ...], set[str]]:
    """Find the quoted string in which the prefix ends.

    Returns:
        The string, what it is a part of (json, csv, pairs), the keys that lead to it, and those
        beside it. No string and a kind where there are quotes that cannot be understood.
    """
    text, pos = found.text, found.pos
    firsts = {q: i for q in (quote, "'") if (i := text.find(q, pos)) >= 0}
    if not firsts:
        return None, "", (), set()
    if min(firsts, key=lambda q: firsts[q]) == "'":
        quote, csv = "'", False
    while text[pos].isspace():
        pos += 1
    if not csv and (m := _pairs(quote).match(text, pos)):
        return _Level(pos, m.end(), quote), "pairs", (m["key"],), set()
    if not csv and (m := _scalar(quote).match(text, pos)):
        return _Level(pos, m.end(), quote), "scalar", (m["key"],) if m["key"] else (), set()
    starts = text[pos] in "{["
    if not (csv or starts) and quote == '"' and (at := _csv_field(text, pos)) is not None:
        return _Level(pos, at, quote), "csv", (), set()
    m = re.compile(
        r"[{\[](?:[\[{\s]{0,8}|[0-9.]{1,20}, ?)" + re.escape(quote)  # asciinema: [0.5, "o", "..."]
    ).search(text, pos)
    first = text.find(quote, pos)
    opened = m is not None and m.end() - len(quote) == first
    start = m.start() if m and opened else pos
    if start > pos and not found.take_shape(text[pos:start], delimited=False):
        return None, "json", (), set()
    path = _json_path(text, start, quote) if opened or first == pos else None
    if path is None:
        return None, "json", (), set()
    keys, at, beside = path
    found.rests.append((pos, start))
    return _Level(start, at, quote), "json", keys, beside


def _pairs(quote: str) -> re.Pattern[str]:
    """Return a pattern for logfmt, or TOML, up to the quote before a value."""
    q = quote[-1]
    inside = rf"(?:[^{q}\\]|\\.)*{q}" if quote == q else f"[^{q}]*{q}"
    value = rf"(?:{re.escape(quote)}{inside}|[^\s{q}]*)"
    return re.compile(
        rf"(?:[\w.@/-]+={value}\s+){{0,64}}(?P<key>[\w.@/-]+) ?= ?{re.escape(quote)}"
    )


def _scalar(quote: str) -> re.Pattern[str]:
    """Return a pattern for YAML, or what Python prints of a text, up to its quote.

    A text in double quotes alone is a table of one cell.
    """
    key = r"(?:- +){0,4}(?P<key>[\w.@/-]+): +"
    alone = r"(?:- +){0,4}b?" if quote == "'" else r"(?:(?:- +){1,4}b?|b)"
    return re.compile(rf"(?:{key}|{alone}){re.escape(quote)}")


def _token(quote: str) -> str:
    """Return a pattern for what may be such a quote, however it is escaped."""
    return rf"\\*{quote[-1] * quote.count(quote[-1])}"


def _json_path(text: str, at: int, quote: str) -> tuple[tuple[str, ...], int, set[str]] | None:
    """Tell the JSON string in which `text` ends.

    Args:
        text: the line up to the message.
        at: where the JSON starts; also inside of an object, as pretty-printers break it up.
        quote: how a quote of this JSON is written.

    Returns:
        The keys that lead to the string, its start, and the keys before it in its object.
    """
    slashes = quote.count("\\")
    keys: list[str | None] = [None]
    beside: list[set[str]] = [set()]
    last, start = "", -1
    lone = '|"' if quote.endswith('""') else ""
    tokens = re.compile(_token(quote) + lone + r"|[{}\[\],:]")
    for m in tokens.finditer(text, at):
        token = m[0]
        if token[-1] == quote[-1]:
            if token.count(quote[-1]) != quote.count(quote[-1]):
                return None  # the field of the table ends
            is_quote = (len(token) - len(quote)) % (2 * slashes + 2) == 0
            if start >= 0 and is_quote:
                last, start = text[start : m.start()], -1
            elif start < 0:
                if token != quote:
                    return None
                start = m.end()
        elif start >= 0:
            continue
        elif token in "{[":
            keys.append(None)
            beside.append(set())
        elif token in "}]":
            if len(keys) > 1:
                keys.pop()
                beside.pop()
        elif token == ":":
            keys[-1] = last
            beside[-1].add(last)
        else:
            keys[-1] = None
    if start < 0:
        return None
    return tuple(k for k in keys if k is not None), start, beside[-1]


def _keys_behind(text: str, quote: str) -> set[str]:
    """Return the keys behind the string in which `text` starts, in the same object."""
    keys: set[str] = set()
    depth, last, start = 0, "", -1
    tokens = re.compile(_token(quote) + r"|[{}\[\]:]")
    for m in tokens.finditer(text, string_end(text, 0, quote)):
        token = m[0]
        if token == quote:
            if start >= 0:
                last = text[start : m.start()]
            start = m.end() if start < 0 else -1
        elif start >= 0 or token[-1] == quote[-1]:
            continue
        elif token in "{[":
            depth += 1
        elif token in "}]":
            depth -= 1
            if depth < 0:
                break
        elif depth == 0:
            keys.add(last)
    return keys


def _csv_field(text: str, pos: int) -> int | None:
    """Return where the quoted cell of a table row starts in which `text` ends."""
    while m := _CSV_QUOTED.match(text, pos) or _CSV_CELL.match(text, pos):
        pos = m.end()
    if text[pos : pos + 1] != '"' or re.search(r'(?<!")"(?!")', text[pos + 1 :].replace('""', "")):
        return None
    return pos + 1


def _may_log(keys: tuple[str, ...], beside: set[str], text: str) -> bool:
    """Whether a logger's line may stand under these keys of `text`, and beside those."""
    if not keys:
        return True
    *path, leaf = keys
    if any(key in _PROMPT_KEYS for key in path) or beside & _REQUEST_KEYS:
        return False
    if leaf in ("body", "stringValue") or "body" in path:
        return _OTEL.search(text) is not None
    if leaf == "content" and any(map(_COLLECTED.fullmatch, beside)):
        return True
    if leaf == "value" and "field" in beside:
        return _INSIGHTS.search(text) is not None
    return leaf not in _PROMPT_LEAVES


def _find_own(text: str, pos: int) -> re.Match[str] | None:
    """Find SGLang's own stamp: the last one before the message.

    Without bracket and ranks it is taken only where nothing else stands before it.
    """
    own = None
    for m in OWN.finditer(text, pos):
        if m["open"] or m.start() == pos or _RANKS.fullmatch(m["tags"]):
            own = m
    return own


def _read_stamps(found: _Found, own: re.Match[str] | None, after: str, after_at: int) -> None:
    """Take the innermost stamp, which is the server's own clock, and the zone of another.

    From the outside: wrappers, the fields beside a quoted string, then text inside of it that
    no wrapper explains.
    """
    text = found.text
    beside = list(_beside(found.levels, text, after, after_at))
    stamps = [(start, (start, stop), zone) for start, stop, zone in found.stamps]
    for pattern in (_ANY_DATED, _ANY_CLOCK, _ANY_EPOCH):
        for inside, pieces in beside:
            for k, (piece, base) in enumerate(pieces):
                seen = [m for m in pattern.finditer(piece) if k or _outside(found, base, m)]
                if seen:
                    m = seen[0 if k else -1]
                    stamps.append((inside - 1, _extent(m, base), _zone(piece, m)))
                    break
        for start, stop in found.rests:
            rest = text[start:stop]
            for m in [*pattern.finditer(rest)][-1:]:
                stamps.append((start + m.start(), _extent(m, start), _zone(rest, m)))
        if stamps:
            break
    stamps.sort(key=lambda s: s[0])
    line = text + " " * max(0, after_at - len(text)) + after
    if own is not None:
        stamp, extent, found.zone = own["stamp"], own.span("stamp"), own["zone"]
        found.zone = found.zone or zone_within(stamp)
        found.wrapper_stamp = stamp if found.zone else None
    elif stamps:
        _, (start, stop), zone = stamps.pop()
        stamp, extent = line[start:stop], (start, stop)
        found.zone = zone
        found.wrapper_stamp = stamp if zone else None
    else:
        stamp, extent = "", (0, 0)
        for _, pieces in reversed(beside):
            for piece, base in pieces:
                if not stamp and (epoch := _EPOCH.search(piece)):
                    stamp, found.zone = epoch[1], "UTC"
                    extent = base + epoch.start(1), base + epoch.end(1)
    if stamp:
        found.add("stamp", extent, like(stamp), stamp)
    if found.zone is None:
        for _, (start, stop), zone in stamps:
            if zone and found.zone is None:
                found.zone, found.wrapper_stamp = zone, line[start:stop]
    told = [
        (_KEY_KIND[m["key"]], base + m.start("name"), base + m.end("name"), m["name"])
        for _, pieces in beside
        for piece, base in pieces
        for m in _JSON_STREAM.finditer(piece)
        if _KEY_KIND[m["key"]] != _TAG or _ATTRIBUTES.search(piece, 0, m.start())
    ]
    found.writers += [name[1:] for name in _telling(told)]


def _outside(found: _Found, base: int, m: re.Match[str]) -> bool:
    """Whether a stamp was not read as a part of a wrapper already."""
    return all(
        base + m.start() >= stop or base + m.end() <= start for start, stop, _ in found.stamps
    )


def _extent(m: re.Match[str], base: int) -> tuple[int, int]:
    return base + m.start(), base + m.end()


def _zone(text: str, stamp: re.Match[str]) -> str | None:
    zone = _ZONE.match(text, stamp.end())
    return zone[1] if zone else zone_within(stamp[0])


def _beside(
    levels: list[_Level], text: str, after: str, after_at: int
) -> Iterator[tuple[int, list[tuple[str, int]]]]:
    """Yield what stands beside each quoted string, from the outside: before and behind it.

    With each: where the string starts, and the place of each piece in the line.
    """
    behind: list[tuple[str, int]] = []
    at = 0
    for k, level in reversed(list(enumerate(levels))):
        at = string_end(after, at, level.quote)
        outer = levels[k - 1].quote if k else None
        stop = string_end(after, at, outer, inclusive=False) if outer else len(after)
        behind.append((after[at:stop], after_at + at))
        at = stop
    for level, piece in zip(levels, reversed(behind), strict=True):
        yield level.content, [(text[level.start : level.content], level.start), piece]


def string_end(text: str, at: int, quote: str, *, inclusive: bool = True) -> int:
    """Return where the string ends in which `text` stands at `at`."""
    token = r'\\+"|"+' if quote == '"' else _token(quote)  # a table doubles those inside
    for m in re.compile(token).finditer(text, at):
        if m[0] == quote:
            return m.end() if inclusive else m.start()
    return len(text)


def _stream_pattern(stream: str) -> str:
    """Return a pattern for names like `stream`: the same words, with the same blanks."""
    return " ".join(map(_word_pattern, stream.split(" ")))


def _word_pattern(word: str) -> str:
    for others in ('[^ |)\\]",;\\t]+', '[^ |)\\]"]+'):  # a cell of a table ends at its comma
        if re.fullmatch(others, word):
            return others
    return spread(word)


def zone_of(prefix: Prefix) -> str | None:
    """Tell the zone of a line's stamp from the wrapper's clock beside it.

    Returns:
        `UTC` or an offset like `+08:00`; of SGLang's own clock where both stand on the line,
        else of the wrapper's. None where it cannot be told.
    """
    if prefix.zone is None:
        return None
    minutes = minutes_of(prefix.zone)
    stamp, other = prefix.values.get("stamp"), prefix.wrapper_stamp
    if stamp and other and stamp != other:
        here, there = moment_of(stamp, stamp[:4]), moment_of(other, stamp[:4])
        if here is not None and there is not None:
            minutes += round((here - there).total_seconds() / 900) * 15
        elif prefix.clock in ("date", "fraction"):
            return None
    if abs(minutes) > 14 * 60:
        return None
    if minutes == 0:
        return "UTC"
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"
