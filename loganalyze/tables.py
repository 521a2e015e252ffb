"""Tables of log lines, as log services export them: which cells name the writer of a line.

A first line of names tells what the columns hold. Only columns that say who wrote a line
matter here; the message is found by its quotes, and the stamps by their form.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

#: Names of columns, in small letters and without what is no letter -> the key of JSON of the
#: same meaning. A longer name means the same by its last words: `kubernetes.pod.name`.
_KEYS = {
    "pod": "pod",
    "podname": "pod",
    "containerid": "container_id",
    "logstream": "logStream",
    "logstreamname": "logStream",
    "container": "container",
    "containername": "container",
    "namespace": "namespace",
    "podnamespace": "namespace",
    "systemdunit": "unit",
    "host": "host",
    "hostname": "host",
    "computer": "host",
    "computername": "host",
    "machine": "host",
    "machinename": "host",
    "node": "host",
    "nodename": "host",
    "server": "host",
    "instance": "host",
    "instanceid": "host",
}
#: A collector of syslog calls the host the source of a message; elsewhere that is a file.
_SOURCE = "source"
_MESSAGES = frozenset(
    [
        "message",
        "msg",
        "log",
        "line",
        "raw",
        "content",
        "event",
        "body",
        "text",
        "payload",
        "entry",
    ]
)
#: A name of a column. What has more words is a sentence.
_NAME = re.compile(r"(?=.*[A-Za-z])[\w@.\[\]/-]{1,80}(?: [\w@.\[\]/-]{1,80})?")
#: A name of a writer; anything else is not what the column should hold.
_WRITER = re.compile(r"[\w@./:-]{1,253}")
_CELL = r'(?: *"(?P<quoted>(?:[^"]|"")*)(?:" *|$)|(?P<plain>[^%s]*))'
_WORDS = re.compile(r"[a-z]+|\d+")
#: A longer first line is none of names.
_MAX_HEADER = 4096
#: What stands above the names: a comment, the separator for a spreadsheet.
_ABOVE = re.compile(r"\ufeff?\s*(?:$|#|--|//|(?i:sep)=.$)")
#: So many lines may stand above them.
_MAX_ABOVE = 16


@dataclass(frozen=True, slots=True)
class Table:
    """A table of lines.

    Attributes:
        separator: what stands between its cells.
        writers: index of a column -> what it says about the writer, as a key of JSON.
        message: index of the column with the line.
    """

    separator: str
    writers: dict[int, str]
    message: int

    def writer_cells(self, line: str) -> Iterator[tuple[str, int, int]]:
        """Yield what a row says about the writer of its line: key, start and end of each."""
        cell = re.compile(_CELL % re.escape(self.separator))
        at, last = 0, max(self.writers)
        for k in range(last + 1):
            m = cell.match(line, at)
            if m is None:
                return
            name = "plain" if m["quoted"] is None else "quoted"
            if k == self.message and name == "plain" and self.separator == ",":
                return  # its own commas end no cell
            text = m[name].strip()
            if k in self.writers and text != "-" and _WRITER.fullmatch(text):
                start = m.start(name) + m[name].index(text)
                yield self.writers[k], start, start + len(text)
            at = m.end() + 1
            if line[m.end() : at] != self.separator:
                return


@lru_cache(256)
def table_of(head: str) -> Table | None:
    """Read the first line of a log that is no comment as names of columns.

    None where it names no line or no writer of it: a sentence with commas is no header.

    Args:
        head: the first lines of the log.
    """
    lines = head.split("\n", _MAX_ABOVE + 1)[: _MAX_ABOVE + 1]
    header = next((line for line in lines if not _ABOVE.match(line.rstrip())), "")
    header = header.strip("\ufeff\r\n ")
    separator = max(",;\t|", key=header.count)
    names = [name.strip(' "') for name in header.split(separator)]
    if len(header) > _MAX_HEADER or len(names) < 2:
        return None
    words = [
        _WORDS.findall(re.sub(r"([a-z])([A-Z])", r"\1 \2", name).lower())
        if _NAME.fullmatch(name)
        else []
        for name in names
    ]
    keys = {k: key for k, said in enumerate(words) if (key := _key_of(said)) is not None}
    if "host" not in keys.values() and ["sourcetype"] not in words and [_SOURCE] in words:
        keys[words.index([_SOURCE])] = "host"
    message = next((k for k, said in enumerate(words) if said and said[-1] in _MESSAGES), None)
    return Table(separator, keys, message) if keys and message is not None else None


def _key_of(words: list[str]) -> str | None:
    ends = ("".join(words[k:]) for k in range(len(words)))
    return next((_KEYS[end] for end in ends if end in _KEYS), None)
