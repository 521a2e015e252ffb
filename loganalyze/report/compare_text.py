"""A comparison for the terminal: what changed, what it did, and the verdict last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from loganalyze.model import Comparison, Difference, Pair
from loganalyze.report import compare_words, words
from loganalyze.report.to_text import MAX_WIDTH, columns, wrap

#: Columns of the longest verdict, with a space behind it.
_VERDICT = 22

_TONES = {"better": "1;32", "worse": "1;31"}


def render(found: Comparison, color: bool = False, width: int = MAX_WIDTH) -> str:
    """Return the comparison as text.

    Args:
        found: any comparison.
        color: whether to write ANSI colours; nothing is said by colour alone.
        width: columns of the terminal; more than 100 are not used.
    """
    width = max(40, min(width, MAX_WIDTH))
    found = compare_words.safe(found)
    lines: list[str] = []
    for name, side in compare_words.sides(found):
        log, release = words.name(side.name), compare_words.release(side)
        said = f"{log}: {compare_words.compared(side)}; {release}"
        lines += _put(f"{name}  ", said, width)
    for item in found.unreadable:
        lines += _put("", f"not compared: {item.name}: {item.message}", width)
    for pair in found.pairs:
        lines += ["", *_pair(found, pair, color, width)]
    return "\n".join(lines) + "\n"


def _pair(found: Comparison, pair: Pair, color: bool, width: int) -> Iterator[str]:
    if len(found.pairs) > 1:
        yield f"{words.name(found.before.name)} → {words.name(pair.after.name)}"
        yield ""
    yield from _changed(pair, width)
    if pair.load:
        yield from _measures("Load", pair.load, color, width)
    yield from _measures("What it did", pair.differences, color, width)
    for note in compare_words.notes(found, pair):
        yield from _put("note  ", note, width)
    yield from wrap(compare_words.INTERVALS, width)
    yield ""
    first = pair.differences[0]
    yield _tinted(compare_words.verdict(first).upper(), first, color)
    yield from ("  " + line for line in wrap(pair.headline, width - 2))


def _changed(pair: Pair, width: int) -> Iterator[str]:
    """Write the settings and sizes that differ; sizes that are the same are left out."""
    settings, incidental = compare_words.split(pair.settings)
    yield "What was changed"
    for one in settings:
        flag, a, b = compare_words.setting(one)
        yield from _put("  ", f"{flag}  {a} → {b}", width)
    if not settings and pair.settings_known:
        yield "  no server argument that matters"
    if incidental:
        names = ", ".join(s.name for s in incidental)
        yield from _put("  ", f"besides: {names}", width)
    for size in pair.sizes:
        a, b, change = compare_words.size(size)
        if change != "same":
            note = f" ({size.note})" if size.note else ""
            yield from _put("  ", f"{size.name}  {a} → {b}  {change}{note}", width)
    yield ""


def _measures(title: str, rows: Sequence[Difference], color: bool, width: int) -> Iterator[str]:
    """Write each measure: its verdict and name, and below the values with the change."""
    yield title
    for one in rows:
        head = compare_words.verdict(one)
        lines = _put(f"  {head:<{_VERDICT}}", one.label, width)
        yield lines[0].replace(head, _tinted(head, one, color), 1)
        yield from lines[1:]
        said = (
            f"{compare_words.measured(one)}, {compare_words.effect(one)}"
            if one.effect
            else compare_words.why(one)
        )
        yield from _put(" " * (_VERDICT + 2), said, width)
    yield ""


def _put(head: str, text: str, width: int) -> list[str]:
    """Wrap a text behind a head, whose width stays free on the lines after."""
    lines = wrap(text, width - columns(head))
    return [head + lines[0], *(" " * columns(head) + line for line in lines[1:])]


def _tinted(text: str, one: Difference, color: bool) -> str:
    tone = _TONES.get(one.verdict)
    return f"\x1b[{tone}m{text}\x1b[0m" if color and tone else text
