"""Whether every rule still finds what it is made for: run them over the planted logs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from loganalyze import rules, sessions
from loganalyze.frames import Frames
from loganalyze.model import SessionData
from loganalyze.parse import Parser
from loganalyze.rules.planted import PLANTED
from loganalyze.sources import open_sources
from loganalyze.store import Store


@dataclass(frozen=True, slots=True)
class Checked:
    """What became of one rule on the log planted for it.

    Attributes:
        code, name: the rule.
        planted: what the log shows, in words.
        passed: whether the rule fired.
        answer: its finding, or why it found nothing.
    """

    code: str
    name: str
    planted: str
    passed: bool
    answer: str


def run(on_log: Callable[[str], None] | None = None) -> list[Checked]:
    """Run the rules over every planted log.

    Args:
        on_log: called with the words of each planted log before it is read.

    Returns:
        One entry per rule, in the order of `rules.all_rules`.
    """
    found: dict[str, Checked] = {}
    known = rules.all_rules()
    for planted in PLANTED:
        if on_log:
            on_log(planted.name)
        outcomes = rules.run(read(planted.logs()))
        for code in planted.shows:
            own = [o for o in outcomes if o.code == code]
            best = next((o for o in own if o.status == "fired"), own[0])
            found[code] = Checked(
                code, known[code].name, planted.name, best.status == "fired", best.reason
            )
    return [found[code] for code in known if code in found]


def read(logs: dict[str, str]) -> list[SessionData]:
    """Return the sessions of some log texts, by file name."""
    with tempfile.TemporaryDirectory() as folder:
        paths = list(_written(Path(folder), logs))
        parser, store = Parser(), Store()
        for source in open_sources(paths):
            for chunk in parser.read(source):
                store.add(chunk)
        return sessions.split(Frames(**store.frames()))


def _written(folder: Path, logs: dict[str, str]) -> Iterator[str]:
    for name, text in logs.items():
        path = folder / name
        path.write_text(text, encoding="utf-8")
        yield str(path)
