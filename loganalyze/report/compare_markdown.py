"""A comparison as a Markdown block for a ticket or a merge request."""

from __future__ import annotations

from collections.abc import Iterator

from loganalyze.model import Comparison, Difference, Pair
from loganalyze.report import compare_words, words
from loganalyze.report.to_markdown import code, prose

_SETTINGS = 20


def render(found: Comparison) -> str:
    """Return the block; one table per run that is compared with the first."""
    found = compare_words.safe(found)
    lines: list[str] = []
    for pair in found.pairs:
        lines += [*_pair(found, pair), ""]
    for item in found.unreadable:
        lines.append(f"- Not compared: {code(item.name)}: {prose(item.message)}")
    made = code(found.command, 300) or "the library"
    lines += [prose(compare_words.INTERVALS, 500), ""]
    lines.append(f"Made by loganalyze {prose(found.tool_version)} with {made}.")
    return "\n".join(lines) + "\n"


def _pair(found: Comparison, pair: Pair) -> Iterator[str]:
    first = pair.differences[0]
    yield f"### {compare_words.verdict(first).capitalize()}: {prose(pair.headline, 500)}"
    yield ""
    yield "| Run | Log | Compared |"
    yield "| --- | --- | --- |"
    for name, side in (("before", found.before), ("after", pair.after)):
        log = code(words.name(side.name), 80)
        yield f"| {name} | {log} | {prose(compare_words.compared(side))} |"
    yield ""
    yield "| What was changed | Before | After | |"
    yield "| --- | --- | --- | --- |"
    settings, incidental = compare_words.split(pair.settings)
    for one in settings[:_SETTINGS]:
        flag, a, b = compare_words.setting(one)
        yield f"| {code(flag)} | {code(a, 80)} | {code(b, 80)} | |"
    if len(settings) > _SETTINGS:
        yield f"| {len(settings) - _SETTINGS} more arguments | | | |"
    for size in pair.sizes:
        a, b, change = compare_words.size(size)
        if change != "same":
            yield f"| {size.name} | {a} | {b} | {change} {prose(size.note)} |"
    yield ""
    yield "| Verdict | What it did | Before | After | Change (95%) |"
    yield "| --- | --- | --- | --- | --- |"
    for measure in (*pair.differences, *pair.load):
        yield _row(measure)
    notes = compare_words.notes(found, pair)
    if incidental:
        notes.append(f"changed besides: {', '.join(s.name for s in incidental)}")
    if notes:
        yield ""
        yield from (f"- {prose(note)}" for note in notes)


def _row(one: Difference) -> str:
    unit = "" if one.unit == "fraction" else f" {one.unit}"
    if one.effect is None:
        return (
            f"| {compare_words.verdict(one)} | {one.label} | | | {prose(compare_words.why(one))} |"
        )
    a, b = (compare_words.value(v, one.unit) for v in (one.before, one.after))
    change = compare_words.effect(one)
    return f"| {compare_words.verdict(one)} | {one.label} | {a} | {b}{unit} | {change} |"
