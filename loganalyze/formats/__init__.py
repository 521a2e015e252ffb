"""Line formats as data: what a line of each kind looks like, in `*.toml`; see samples.toml.

A format names the literals by which its lines are found, the anchor that stands at the
start of its message, and one label and type per column. One pattern is built per column,
so releases may add, drop and reorder fields; an absent field is null.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Set
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from typing import Any

from loganalyze import schema, stamps
from loganalyze.errors import UsageError
from loganalyze.releases import parse_range

#: Value patterns. None needs a look-around, so that Polars' engine runs them as they are.
TYPES = {
    "count": r"-?[0-9]+",
    "count_or_none": r"-?[0-9]+|None",
    "float": r"-?[0-9]+(?:\.[0-9]+)?|nan",
    "percent": r"-?[0-9]+(?:\.[0-9]+)?|nan",
    "gb": r"-?[0-9]+(?:\.[0-9]+)?",
    "seconds": r"-?[0-9]+(?:\.[0-9]+)?",
    "flag": r"True|False",
    "iso": r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+",
    "word": r"[A-Za-z0-9_.-]+",
    "token": r"[^ ]+",
    "text": r".*",
}
#: What follows the value of a type.
UNITS = {"percent": "%", "gb": " ?GB", "seconds": " ?s"}

_FILES = ("decode", "prefill", "startup", "event", "request")
#: Before a label: the message's start, or the end of the field before it. Without it,
#: `token usage` would also read `swa token usage`.
_BEFORE = r"(?:^|[,;]\s*|[.:)\]|]\s+)"
_ASSIGN = r"(?:: ?|=)"
#: After a value: anything that cannot be part of it. Another writer's line may follow.
_AFTER = r"(?!(?!INFO: |[A-Z][a-z]{3,20} )[\w%]|\.[0-9])"


@dataclass(frozen=True, slots=True)
class Field:
    """One column of a format, found by its labels, by a pattern of its own, or by both.

    Attributes:
        column: name in the frame.
        type: key of `TYPES`; `present` for a flag that is true where its pattern occurs,
            `choice` for one of a few words.
        labels: what stands before the value.
        pattern: finds the value as its only group (for `present`: any text). Empty for none.
        rest: pattern of what belongs to the field after its value.
        choices: what the words that may stand there mean; empty for all other types.
    """

    column: str
    type: str
    labels: tuple[str, ...] = ()
    pattern: str = ""
    rest: str = ""
    choices: dict[str, str] | None = None

    def value_pattern(self) -> str:
        """Return the pattern of the value with its unit, the value as a group."""
        return rf"({TYPES[self.type]}){UNITS.get(self.type, '')}{_AFTER}{self.rest}"


@dataclass(frozen=True, slots=True)
class Rule:
    """A feature of a line, and the releases that have it.

    Attributes:
        has: columns that the line has; lacks: columns that it has not.
        text: pattern of its text; empty for any.
        frame: frame of the line; empty for any.
        releases: as `releases.parse_range` gives them.
    """

    has: tuple[str, ...]
    lacks: tuple[str, ...]
    text: str
    frame: str
    releases: int

    def fits(self, columns: Set[str], text: str, frame: str) -> bool:
        """Whether a line of `frame` with these columns and this text has the feature."""
        return (
            all(column in columns for column in self.has)
            and all(column not in columns for column in self.lacks)
            and self.frame in ("", frame)
            and (not self.text or re.search(self.text, text) is not None)
        )


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of a known release and what it must give."""

    release: str
    line: str
    want: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Format:
    """One kind of line.

    Attributes:
        name: table name in its file; unique.
        kind: what coverage and the `kind` column call it.
        frame: batch, event, startup or request.
        find: literals; every line of this format holds at least one.
        anchor: pattern of what the message starts with.
        fixed: columns with the same value on every line.
        needs: columns without which the line was cut off.
        multiline: the lines up to the next record belong to it.
        whole: never shortened, however long.
        stampless: of releases that print neither stamp nor GPU before their statistics.
        closed: whatever follows on the line belongs to it, be it another record's text.
        fields: one per column.
        rules: which releases print which shape.
    """

    name: str
    kind: str
    frame: str
    find: tuple[bytes, ...]
    anchor: str
    fixed: dict[str, str]
    needs: tuple[str, ...]
    multiline: bool
    whole: bool
    stampless: bool
    closed: bool
    fields: tuple[Field, ...]
    rules: tuple[Rule, ...]

    @cached_property
    def by_label(self) -> dict[str, Field]:
        """Field of each label."""
        return {label: f for f in self.fields for label in f.labels}

    @cached_property
    def label_pattern(self) -> re.Pattern[str]:
        """Finds every label (group 1) that has a value; the value starts where it ends."""
        labels = "|".join(re.escape(label) for label in self.by_label)
        return re.compile(f"{_BEFORE}({labels}){_ASSIGN}" if labels else r"(?!)")

    def find_fields(self, body: str) -> Iterator[tuple[Field, int, int, int, int]]:
        """Find the fields of a message.

        Yields:
            The field, the extent of its value, and the extent of all its text.
        """
        for m in self.label_pattern.finditer(body):
            f = self.by_label[m[1]]
            value = re.compile(f.value_pattern()).match(body, m.end())
            if value:
                yield f, *value.span(1), m.start(), value.end()
        for f in self.fields:
            found = re.search(f.pattern, body) if f.pattern else None
            if found:
                yield f, *found.span(found.re.groups), *found.span()


@dataclass(frozen=True, slots=True)
class Wrapper:
    """What another program puts before a line; see prefix.toml."""

    name: str
    pattern: re.Pattern[str]
    loose: str | None
    transport: bool
    some_lines: bool


def _field(column: str, spec: dict[str, Any]) -> Field:
    if "present" in spec:
        return Field(column, "present", pattern=spec["present"])
    labels = spec.get("label", ())
    labels = (labels,) if isinstance(labels, str) else tuple(labels)
    return Field(
        column,
        spec.get("type", "choice"),
        labels,
        spec.get("pattern", ""),
        spec.get("rest", ""),
        spec.get("choices"),
    )


def _rule(spec: dict[str, Any]) -> Rule:
    return Rule(
        tuple(spec.get("has", ())),
        tuple(spec.get("lacks", ())),
        spec.get("text", ""),
        spec.get("frame", ""),
        parse_range(spec["in"]),
    )


def _format(name: str, spec: dict[str, Any]) -> Format:
    frame = spec["frame"]
    fixed = {k: str(v) for k, v in spec.get("set", {}).items()}
    kind = spec.get("kind", fixed.get("phase", name) if frame == "batch" else name)
    if frame != "batch":
        fixed["kind"] = kind
    return Format(
        name=name,
        kind=kind,
        frame=frame,
        find=tuple(f.encode() for f in spec["find"]),
        anchor=spec["anchor"],
        fixed=fixed,
        needs=tuple(spec.get("needs", ())),
        multiline=spec.get("multiline", False),
        whole=spec.get("whole", False),
        stampless=spec.get("stampless", False),
        closed=spec.get("closed", False),
        fields=tuple(_field(c, s) for c, s in spec["columns"].items()),
        rules=tuple(_rule(r) for r in spec.get("releases", ())),
    )


def check(fmt: Format) -> None:
    """Raise `UsageError` where a definition contradicts the schema or itself."""
    columns = {c.name for c in schema.FRAMES[fmt.frame]} | {"args_text"}
    ruled = [c for rule in fmt.rules for c in (*rule.has, *rule.lacks)]
    for column in (*fmt.fixed, *fmt.needs, *ruled, *(f.column for f in fmt.fields)):
        if column not in columns:
            raise UsageError(f"format {fmt.name}: the {fmt.frame} frame has no column {column}")


def parse_toml(text: str) -> list[Format]:
    """Read the formats of one TOML text and check them."""
    found = [_format(name, spec) for name, spec in tomllib.loads(text).items()]
    for fmt in found:
        check(fmt)
    return found


@cache
def _text(name: str) -> str:
    return (resources.files(__package__) / f"{name}.toml").read_text(encoding="utf-8")


@cache
def load() -> tuple[Format, ...]:
    """Return every format, in the order of their files."""
    return tuple(fmt for name in _FILES for fmt in parse_toml(_text(name)))


@cache
def samples() -> dict[str, tuple[Sample, ...]]:
    """Return the samples of each format, by its name."""
    return {
        name: tuple(Sample(s["release"], s["line"], s["want"]) for s in found)
        for name, found in tomllib.loads(_text("samples")).items()
    }


@cache
def _prefix() -> dict[str, Any]:
    text = _text("prefix")
    for name, pattern in (
        ("STAMP", stamps.DATED),
        ("WEEKDAY", stamps.WEEKDAY),
        ("ZONE", stamps.ZONE),
        ("ABBREVIATION", stamps.ABBREVIATION),
    ):
        text = text.replace(name, pattern)
    return tomllib.loads(text)


@cache
def wrappers() -> tuple[Wrapper, ...]:
    """Return every wrapper, in the order in which they are tried."""
    return tuple(
        Wrapper(
            w["name"],
            re.compile(w["pattern"]),
            w.get("loose"),
            w.get("transport", False),
            w.get("some_lines", False),
        )
        for w in _prefix()["wrapper"]
    )


#: What most lines of most logs begin with, and no wrapper does.
_OWN_STAMP = re.compile(
    r"\[[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{3})?"
    r"(?: [A-Z_]+-?[0-9]+)*\](?: |$)"
)


def wrappers_at(
    text: str, pos: int, *, transport: bool = False
) -> Iterator[tuple[Wrapper, re.Match[str]]]:
    """Yield the wrappers that stand at a place in a text, each with its match.

    Args:
        text: a line, or what stands before its message.
        pos: the place.
        transport: whether only those are wanted that stand before every line.
    """
    if _OWN_STAMP.match(text, pos):
        return
    for wrapper in wrappers():
        if transport and not wrapper.transport:
            continue
        m = wrapper.pattern.match(text, pos)
        if m and m.end() > pos:
            yield wrapper, m


@cache
def behind() -> re.Pattern[str]:
    """Return a pattern for what other programs put behind a line."""
    return re.compile("|".join(f"(?:{b['pattern']})" for b in _prefix()["behind"]))


@cache
def prefix_rules() -> tuple[Rule, ...]:
    """Return which releases print which prefix of their own."""
    return tuple(_rule(r) for r in _prefix()["releases"])
