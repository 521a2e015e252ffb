"""A plan for the terminal: what is, what could be, and what each step costs."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence

from loganalyze.model import Estimate, Lever, Plan
from loganalyze.report import words

#: Units of a time, each from so many seconds on.
_UNITS = ((5400.0, 3600.0, "h"), (90.0, 60.0, "min"), (-math.inf, 1.0, "s"))


def render(plan: Plan, explain: bool, width: int) -> str:
    """Return the plan as text.

    Args:
        plan: the plan.
        explain: print the arithmetic of every lever too.
        width: columns to fill.
    """
    parts = [*_head(plan, width), "", *_table(plan), ""]
    for number, lever in enumerate(plan.levers, 1):
        parts += _lever(number, lever, explain, width)
    if plan.notes:
        parts += ["", "What was compared:"]
        parts += [_wrapped(f"- {note}", width, 2) for note in plan.notes]
    return "\n".join(parts) + "\n"


def _head(plan: Plan, width: int) -> list[str]:
    said: list[str] = []
    if plan.session is not None:
        said.append(f"Plan for session {plan.session}.")
    if plan.limit:
        said.append(f"Throughput is held by {plan.limit}.")
    if plan.bytes_per_token:
        said.append(
            f"One KV token takes {plan.bytes_per_token:,.0f} bytes on each rank "
            f"({plan.bytes_from})."
        )
    elif len(plan.cells) > 1:
        said += [
            f"One KV token takes {c.bytes_per_token:,.0f} bytes on each rank with {c.assumes}: "
            f"{c.formula}."
            for c in plan.cells
        ]
    if plan.now.note:
        said.append(words.sentence(plan.now.note))
    if plan.tokens_per_req:
        said.append(
            f"A running request holds {plan.tokens_per_req:,.0f} tokens: "
            f"{plan.tokens_per_req_from}."
        )
    if plan.target_concurrency and plan.target_tokens:
        said.append(f"{plan.target_concurrency:,} requests need {plan.target_tokens:,} tokens.")
    return [_wrapped(sentence, width, 2) for sentence in said]


def _table(plan: Plan) -> list[str]:
    """Return the levers as a table, the present state first."""
    rows = [_row("now", plan.now)]
    rows += [_row(str(n), lever) for n, lever in enumerate(plan.levers, 1)]
    heads: tuple[str, ...] = (
        "",
        "",
        "KV tokens",
        "fit",
        "token/s (90% range)",
        "x now",
        "GiB free",
    )
    extra = [
        any(lever.eta_s for lever in (plan.now, *plan.levers)),
        plan.target_concurrency is not None,
    ]
    heads += tuple(h for h, on in zip(("time left", "target"), extra, strict=True) if on)
    cells = [heads, *(row[:7] + _picked(row[7:], extra) for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(heads))]
    return [
        "  ".join(
            text.ljust(size) if i < 2 else text.rjust(size)
            for i, (text, size) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def _picked(values: Sequence[str], wanted: Iterable[bool]) -> tuple[str, ...]:
    return tuple(v for v, on in zip(values, wanted, strict=True) if on)


def _row(mark: str, lever: Lever) -> tuple[str, ...]:
    return (
        mark,
        lever.name,
        "?" if lever.kv_tokens is None else f"{lever.kv_tokens:,}",
        "?" if lever.concurrency is None else f"{math.floor(lever.concurrency):,}",
        _estimate(lever.throughput, "{:,.0f}"),
        _gain(lever),
        "?" if lever.memory_left_gib is None else f"{lever.memory_left_gib:.1f}",
        _time(lever.eta_s),
        {True: "fits", False: "too few", None: "?"}[lever.reaches_target],
    )


def _gain(lever: Lever) -> str:
    if lever.gain is not None:
        return f"x {lever.gain.mid:.2f}"
    return "0 more" if lever.host_tokens is not None else ""


def _estimate(value: Estimate | None, form: str) -> str:
    if value is None:
        return ""
    middle = form.format(value.mid)
    if value.low == value.high:
        return middle
    return f"{middle} ({form.format(value.low)}-{form.format(value.high)})"


def _time(value: Estimate | None) -> str:
    if value is None:
        return ""
    size, unit = next((size, unit) for least, size, unit in _UNITS if value.mid >= least)
    low, high = (f"{x / size:.1f}" for x in (value.low, value.high))
    return f"{low} {unit}" if value.low == value.high else f"{low}-{high} {unit}"


def _lever(number: int, lever: Lever, explain: bool, width: int) -> list[str]:
    lines = [
        _wrapped(f"{number}. {lever.name}" + (f": {lever.flag}" if lever.flag else ""), width, 3)
    ]
    if lever.host_tokens is not None:
        on = ", on already" if lever.present == "on" else ""
        lines.append(_wrapped(f"   {lever.host_tokens:,} host tokens per rank{on}", width, 3))
    for label, text in (("risk", lever.risk), ("note", lever.note)):
        if text:
            lines.append(_wrapped(f"   {label}: {text}", width, 9))
    if explain:
        lines += [_wrapped(f"   = {step}", width, 5) for step in lever.formula]
    return lines


def _wrapped(text: str, width: int, indent: int) -> str:
    lead = text[: len(text) - len(text.lstrip())]
    return textwrap.fill(
        words.clean(text),
        width=max(width, 40),
        initial_indent=lead,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
