"""A followed log in the terminal: a small view that is redrawn, or plain lines."""

from __future__ import annotations

from collections.abc import Sequence

from loganalyze import rules
from loganalyze.follow import Change, State, StatusLine
from loganalyze.model import Finding
from loganalyze.report import words
from loganalyze.report.to_text import columns, wrap

#: Widths of the view: what a label takes, and the sparkline.
_LABEL, _VALUE = 9, 22
_MAX_WIDTH = 100
_BARS = "▁▂▃▄▅▆▇█"
_FINDINGS = 4

SHAPE: dict[State, str] = {
    "waiting": "…",
    "undetermined": "?",
    "healthy": "✓",
    "degraded": "▲",
    "saturated": "■",
    "idle": "○",
    "silent": "!",
}
_TONES: dict[State, str] = {
    "degraded": "1;33",
    "saturated": "1;31",
    "healthy": "1;32",
    "silent": "1;33",
}
_MEANING: dict[State, str] = {
    "waiting": "no statistics line yet",
    "undetermined": "too little to judge yet",
    "healthy": "nothing slows this server",
    "degraded": "",
    "saturated": "",
    "idle": "no request for a minute",
    "silent": "no line although the last one showed work: idle by now, or stuck",
}


def view(status: StatusLine, width: int, color: bool = False) -> list[str]:
    """Return the lines of the view, none wider than the terminal.

    Args:
        status: what to show.
        width: columns of the terminal.
        color: whether to write ANSI colours; nothing is said by colour alone.
    """
    width = max(40, min(width - 1, _MAX_WIDTH))
    now = status.now
    names = ", ".join(words.clean(words.name(n)) for n in status.names)
    clock = words.moment(now.time) if now.time else f"line {now.line}"
    lines = [f"{_cut(names, width - columns(clock) - 2)}  {clock}"]
    since = f" since {words.moment(status.since)}" if status.since else ""
    head = f"{SHAPE[status.state]} {status.state.upper()}"
    title = _cut(f"{head}{since}", width)
    tone = _TONES.get(status.state)
    lines.append(title.replace(head, f"\x1b[{tone}m{head}\x1b[0m", 1) if color and tone else title)
    if _MEANING[status.state]:
        lines.append(f"  {_cut(_MEANING[status.state], width - 2)}")
    room = width - _LABEL - _VALUE
    full = f"full in {words.duration(now.full_in_s)}" if now.full_in_s is not None else ""
    each = f"{now.rate_per_req:.1f} each" if now.rate_per_req is not None else ""
    for label, name, value, note, top in (
        ("usage", "usage", _number(now.usage, 2), full, 1.0),
        ("running", "running", _number(now.running, 0), "", None),
        ("waiting", "waiting", _number(now.waiting, 0), "", None),
        ("token/s", "rate", _number(now.rate, 0), each, None),
    ):
        text = f"{value} {note}".strip()
        lines.append(f"{label:<{_LABEL}}{text:<{_VALUE}}{spark(status.trail[name], room, top)}")
    for finding in status.active[:_FINDINGS]:
        said = wrap(_finding(finding, len(status.names) > 1), width - 4)
        lines += [f"  {line}" for line in (said if len(said) < 3 else [said[0], f"{said[1]} …"])]
    if len(status.active) > _FINDINGS:
        lines.append(f"  and {len(status.active) - _FINDINGS} more findings: with --json")
    return lines


def spark(values: Sequence[float | None], room: int, top: float | None = None) -> str:
    """Return the last values as bars of one column each; silence is a space.

    Args:
        values: oldest first.
        room: columns there are.
        top: what a full bar stands for; the largest value where None.
    """
    last = list(values)[-max(room, 0) :] if room > 0 else []
    known = [v for v in last if v is not None]
    high = top or max(known, default=0.0)
    if not known:
        return ""
    return "".join(
        " "
        if v is None
        else _BARS[min(int(v / high * len(_BARS)), 7) if high > 0 and v > 0 else 0]
        for v in last
    )


def change(one: Change, several: bool = False) -> str:
    """Say a change of state in one line.

    Args:
        one: the change.
        several: whether several logs are followed, so that a finding names its own.
    """
    clock = words.moment(one.time) if one.time else f"line {one.now.line}"
    if one.event == "end":
        return f"{clock}  {_ended(one)}"
    if one.finding is None:
        meaning = f": {_MEANING[one.state]}" if _MEANING[one.state] else ""
        return f"{clock}  {SHAPE[one.state]} {one.state}{meaning}"
    severity = str(one.finding.severity)
    event = {"clear": "over", "worse": f"now {severity}"}.get(one.event, severity)
    shape = "✓" if one.event == "clear" else words.SHAPE[str(one.finding.severity)]
    return f"{clock}  {shape} {event}  {_finding(one.finding, several)}"


def values(status: StatusLine) -> str:
    """Say the present values in one line, for output that is no terminal."""
    now = status.now
    clock = words.moment(now.time) if now.time else f"line {now.line}"
    said = [
        f"usage {_number(now.usage, 2)}",
        f"running {_number(now.running, 0)}",
        f"waiting {_number(now.waiting, 0)}",
        f"{_number(now.rate, 0)} token/s",
    ]
    if now.full_in_s is not None:
        said.append(f"full in {words.duration(now.full_in_s)}")
    shown = ", ".join(said)
    if status.state == "degraded" and status.active:
        worst = status.active[0]
        shown = f"{worst.code} {worst.name}; last printed: {shown}"
    return f"{clock}  {SHAPE[status.state]} {status.state}  {shown}"


def _ended(one: Change) -> str:
    """Say how a log stood at its end, and what was raised then."""
    known = rules.all_rules()
    raised = ", ".join(f"{code} {known[code].name}" for code in one.active)
    return f"end of the log, {one.state}{f': {raised}' if raised else ''}"


def _finding(finding: Finding, several: bool) -> str:
    source = finding.episodes[-1].source if several and finding.episodes else None
    log = f", {words.clean(words.name(source))}" if source else ""
    return f"{finding.code} {finding.name}{log}: {words.clean(finding.summary)}"


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _cut(text: str, width: int) -> str:
    return text if columns(text) <= width else text[: max(width - 1, 1)] + "…"
