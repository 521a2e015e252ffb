"""What `explain` and `formats` say: facts for JSON, and a text for people."""

from __future__ import annotations

import dataclasses
import difflib
import textwrap
from collections.abc import Callable
from typing import Any

from loganalyze import formats as line_formats
from loganalyze import reading, sessions
from loganalyze import rules as library
from loganalyze.cli import _shared
from loganalyze.errors import UsageError, utf8
from loganalyze.frames import Frames
from loganalyze.parse import Parser
from loganalyze.report import words
from loganalyze.rules import flags as flag_table
from loganalyze.rules.registry import Rule
from loganalyze.store import Store

Facts = dict[str, Any]


def rules() -> tuple[list[Facts], str]:
    """List every rule: code, severity at worst, name and first line."""
    found = [one for _, one in sorted(library.all_rules().items())]
    wide = max(len(one.name) for one in found)
    lines = [f"{r.code:6}  {r.severity!s:8}  {r.name:{wide}}  {r.summary}" for r in found]
    return [_facts(one) for one in found], "\n".join(
        [*lines, "", "`loganalyze explain CODE` prints a rule whole."]
    )


def rule(name: str) -> tuple[Facts, str]:
    """Explain one rule, by its code or its name."""
    one = _find(name)
    parts = [f"{one.code} {one.name} ({one.severity} at worst)", "", _wrapped(one.summary, "")]
    for head, body in one.sections.items():
        parts += ["", f"{head}:", _wrapped(body, "  ")]
    if one.limits:
        parts += ["", f"Limits (--set {one.code}.NAME=VALUE changes one for a run):"]
        for limit_name, limit in one.limits.items():
            unit = "" if limit.unit == "fraction" else f" {limit.unit}"
            parts.append(
                _wrapped(f"{limit_name} = {limit.value:g}{unit}: {limit.meaning}", "  ", 4)
            )
    return _facts(one), "\n".join(parts)


def flags() -> tuple[list[Facts], str]:
    """List the flags that can be explained, with their releases."""
    found = list(flag_table.all_flags().values())
    lines = [f"--{f.name:32} {f.first} to {f.last}" for f in found]
    return [dataclasses.asdict(f) for f in found], "\n".join(lines)


def flag(name: str) -> tuple[Facts, str]:
    """Explain one flag of the server, in any spelling."""
    one = flag_table.lookup(name)
    until = "" if one.last == flag_table.NEWEST else f", gone after {one.last}"
    parts = [f"--{one.name}", "", f"Releases: from {one.first}{until}."]
    if one.dead:
        parts.append(f"Dead: the server accepts it, but no code has read it since {one.dead}.")
    if one.successor:
        parts.append(f"Its place was taken by --{one.successor}.")
    for head, body in (
        ("What it does to the KV pool", one.kv),
        ("When it helps", one.helps),
        ("When it does not", one.no_help),
    ):
        parts += ["", f"{head}:", _wrapped(body, "  ")]
    return dataclasses.asdict(one), "\n".join(parts)


def formats() -> tuple[list[Facts], str]:
    """List the line formats: what they are, and the start of their message as a pattern."""
    found, samples = line_formats.load(), line_formats.samples()
    wide = max(len(one.name) for one in found)
    facts = [
        {
            "name": one.name,
            "kind": one.kind,
            "frame": one.frame,
            "anchor": one.anchor,
            "columns": [field.column for field in one.fields],
            "samples": [sample.line for sample in samples.get(one.name, ())],
        }
        for one in found
    ]
    lines = [f"{one.name:{wide}}  {one.frame:7}  {one.anchor}" for one in found]
    wrappers = [wrapper.name for wrapper in line_formats.wrappers()]
    told = _wrapped(f"Before them may stand, in any order: {', '.join(wrappers)}.", "")
    return facts, "\n".join([*lines, "", told])


def spoken(log: str, on_progress: Callable[[int], None] | None) -> tuple[Facts, str]:
    """Say which formats a log has, how often, and which releases print such lines."""
    parser, store = Parser(), Store()
    reading.read_all(parser, store, [log], on_progress)
    coverage = parser.coverage()
    ranges = [s.session.release_range for s in sessions.split(Frames(**store.frames()))]
    releases = list(dict.fromkeys(" to ".join(dict.fromkeys(r)) for r in ranges if r))
    facts = {
        "log": utf8(log),
        "lines": coverage.lines_total,
        "releases": releases,
        "formats": dict(coverage.by_kind),
        "unrecognised": coverage.lines_unrecognised,
        "partial": coverage.lines_partial,
    }
    wide = max(map(len, coverage.by_kind), default=0)
    return facts, "\n".join(
        [
            f"{words.clean(log)}: {coverage.lines_total:,} lines",
            f"SGLang {' or '.join(releases) or 'of a release that the lines do not tell'}",
            *(f"  {kind:{wide}}  {n:8,}" for kind, n in coverage.by_kind.items() if n),
            f"{coverage.lines_unrecognised:,} lines look like statistics and cannot be read; "
            f"{coverage.lines_partial:,} were cut off",
        ]
    )


def _find(name: str) -> Rule:
    """Return the rule of a code or name; the error suggests what was meant."""
    known = library.all_rules()
    by_name = {one.name: one for one in known.values()}
    one = known.get(name.upper()) or by_name.get(name.lower())
    if one is None:
        near = difflib.get_close_matches(name.upper(), known, 3)
        near += difflib.get_close_matches(name.lower(), by_name, 2)
        hint = f"did you mean {', '.join(near)}?" if near else "`loganalyze explain` lists all"
        plain = name.lstrip("-").replace("_", "-").lower()
        if plain in flag_table.all_flags():
            hint = f"it is a flag of the server: `loganalyze explain --flag {plain}`"
        raise UsageError(f"no rule {name}", hint=hint)
    return one


def _facts(one: Rule) -> Facts:
    """Return a rule as JSON."""
    return {
        "code": one.code,
        "name": one.name,
        "severity": str(one.severity),
        "summary": one.summary,
        "limits": {n: dataclasses.asdict(limit) for n, limit in one.limits.items()},
        "needs": list(one.needs),
        "explains": list(one.explains),
        "sections": dict(one.sections),
    }


def _wrapped(text: str, indent: str, hanging: int = 0) -> str:
    """Fill the terminal's width; lines that stand apart (lists) stay apart."""
    lines = []
    for line in text.splitlines():
        first = indent + line[: len(line) - len(line.lstrip())]
        lines += textwrap.wrap(
            line.strip(),
            min(_shared.width(), 100),
            initial_indent=first,
            subsequent_indent=first + " " * hanging,
            break_on_hyphens=False,
        )
    return "\n".join(lines)
