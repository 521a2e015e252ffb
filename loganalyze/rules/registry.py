"""The rule decorator, the engine that runs rules, and what becomes of each.

A rule is a function of a `Case` (one session's signals and what earlier rules found there)
and its limits. It returns a `Finding`, or `Clear` with the reason why it found nothing, or
raises `NotApplicable` where the log cannot tell. Its docstring is its documentation.
"""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import polars as pl

from loganalyze import docstrings
from loganalyze.capacity import predict
from loganalyze.errors import UsageError
from loganalyze.lengths import duration
from loganalyze.model import CheckStatus, Finding, SessionData, Severity
from loganalyze.rules import deaths
from loganalyze.signals import Rank, Signals

Profile = Literal["online", "batch"]
Limits = Mapping[str, float]

#: The sections that every rule's docstring must have, in this order.
SECTIONS = ("What it flags", "Why it is slow", "Not this rule", "What to do", "Source")

#: What a log lacks that holds no statistics, and what would have logged them.
NO_STATISTICS = (
    "it has no decode or prefill line; a server prints them at --log-level info while it works, a "
    "decode line every --decode-log-interval steps"
)

#: A log shorter than this, in time or in lines, is an excerpt: durations cannot be judged.
EXCERPT_S = 30.0
EXCERPT_LINES = 20

_DROPPED = "Not available: python -OO dropped the text, and its source file is not installed."


class NotApplicable(Exception):
    """The log cannot tell; the message names what is missing and what would log it."""


@dataclass(frozen=True, slots=True)
class Clear:
    """The rule looked and found nothing; `reason` says what it saw, with numbers."""

    reason: str


@dataclass(frozen=True, slots=True)
class Limit:
    """A threshold that a reader may override: value, unit, and what it separates."""

    value: float
    unit: str
    meaning: str


@dataclass(frozen=True)
class Run:
    """The sessions that are judged together; what is asked of all is worked out once.

    Attributes:
        sessions: all sessions of the run, in the order of their ids.
    """

    sessions: Sequence[SessionData]

    @cached_property
    def memory_limits(self) -> Sequence[deaths.MemoryLimit]:
        """The deaths out of GPU memory."""
        return deaths.memory_limits(self.sessions)

    @cached_property
    def following(self) -> Mapping[int, SessionData]:
        """Of each session's id the next session of the same server, if any."""
        found, last = dict[int, SessionData](), dict[int, int]()
        for data in self.sessions:
            own = data.session
            if own.server in last:
                found[last[own.server]] = data
            last[own.server] = own.id
        return found


@dataclass(frozen=True)
class Case:
    """What a rule sees.

    Attributes:
        signals: the session's signals.
        earlier: findings of rules that ran before in this session, by code. A rule that reads
            it names those rules in `after`.
        run: what is judged together; only rules across sessions look at others.
    """

    signals: Signals
    earlier: Mapping[str, Finding]
    run: Run

    @property
    def data(self) -> SessionData:
        """The session's frames."""
        return self.signals.data

    @property
    def sessions(self) -> Sequence[SessionData]:
        """All sessions of this run."""
        return self.run.sessions

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """The DP ranks, each to be judged apart."""
        return self.signals.ranks

    @cached_property
    def excerpt(self) -> bool:
        """Whether the log is too short for any duration."""
        return self.signals.span_s < EXCERPT_S or self.signals.n_lines < EXCERPT_LINES

    @cached_property
    def load(self) -> predict.Load | None:
        """What predictions start from; None for an excerpt."""
        return None if self.excerpt else predict.load(self.data)

    @cached_property
    def judged(self) -> bool:
        """Whether "nothing found" means healthy: one server's, long enough, usage and queue."""
        batch = self.data.batch
        printed = all(batch[c].null_count() < batch.height for c in ("kv_usage", "queue_req"))
        return not self.excerpt and printed and self.signals.servers == 1

    @cached_property
    def doubt(self) -> str:
        """Why these are not all lines of one server, in words; empty if they seem to be."""
        if self.signals.servers > 1:
            return (
                f"the lines of about {self.signals.servers} servers are mixed in it, and nothing "
                "on them tells which server printed which; give the log of each server as a file "
                "of its own, or keep the container's or the process's name on each line"
            )
        shares = [r.told.decoding for r in self.ranks if r.told.sampled]
        if shares:
            unprinted = self.arg("decode_log_interval") is None
            rare = ", or --decode-log-interval, which it does not print, is above 40" * unprinted
            return (
                f"its decode lines tell of {min(filter(None, shares), default=0.0):.0%} of the "
                f"time that passed, so most lines were left out of it{rare}, and prefill batches "
                "cannot be counted"
            )
        return ""

    def need_all_lines(self) -> None:
        """Refuse to judge a log of which many lines were left out, as a sampler does.

        Raises:
            NotApplicable: what the decode lines tell of is a small part of the time.
        """
        if self.doubt:
            raise NotApplicable(self.doubt)

    @cached_property
    def length(self) -> str:
        """How much log there is, in words; empty without statistics lines."""
        if not self.ranks:
            return ""
        lines = f"{self.signals.n_lines:,} statistics line" + "s" * (self.signals.n_lines != 1)
        clocks = {rank.clock for rank in self.ranks}
        if "none" in clocks or not clocks:
            return f"{lines}, without stamps"
        if self.signals.span_s < 1:
            return lines
        return f"{lines} over {duration(self.signals.span_s)}"

    @property
    def following(self) -> SessionData | None:
        """The next session of the same server, if any."""
        return self.run.following.get(self.signals.session.id)

    def arg(self, name: str, default: object = None) -> object:
        """Return a server argument as printed, or `default`."""
        return self.signals.session.config.arg(name, default)


Judge = Callable[[Case, Limits], Finding | Clear]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule and its documentation.

    Attributes:
        summary: the first line of the docstring; `sections` are the rest, by heading.
        needs: batch columns that must hold data; `a|b` means either.
        explains: codes of symptoms that this rule's finding accounts for when both fire at
            the same time.
        after: codes whose findings the rule reads.
        at_once: whether what it looks for shows in a single line, so that an excerpt can clear it.
    """

    code: str
    name: str
    severity: Severity
    needs: tuple[str, ...]
    limits: Mapping[str, Limit]
    explains: tuple[str, ...]
    after: tuple[str, ...]
    at_once: bool
    judge: Judge
    summary: str
    sections: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one rule in one session.

    `judged` says whether the session is long and complete enough to be called healthy,
    `length` what it holds, in words, and `doubt` why that is not all of one server's lines.
    """

    code: str
    status: CheckStatus
    reason: str
    finding: Finding | None = None
    session: int = 0
    limits: Mapping[str, float] = field(default_factory=dict)
    judged: bool = True
    length: str = ""
    doubt: str = ""


_RULES: dict[str, Rule] = {}


def rule(
    code: str,
    name: str,
    *,
    severity: Severity,
    needs: Iterable[str] = (),
    limits: Mapping[str, Limit] | None = None,
    explains: Iterable[str] = (),
    after: Iterable[str] = (),
    at_once: bool = False,
) -> Callable[[Judge], Judge]:
    """Register a rule. See `Rule` for the arguments; `severity` is the worst it gives.

    Raises:
        ValueError: the code is taken, or the docstring lacks a section.
    """

    def register(judge: Judge) -> Judge:
        summary, sections = _documentation(judge)
        if code in _RULES:
            raise ValueError(f"{code} is registered twice")
        _RULES[code] = Rule(
            code=code,
            name=name,
            severity=severity,
            needs=tuple(needs),
            limits=dict(limits or {}),
            explains=tuple(explains),
            after=tuple(after),
            at_once=at_once,
            judge=judge,
            summary=summary,
            sections=sections,
        )
        return judge

    return register


def _documentation(judge: Judge) -> tuple[str, dict[str, str]]:
    text = docstrings.read(judge)
    if text is None and sys.flags.optimize >= 2:  # without source files: say so, and judge
        return _DROPPED, dict.fromkeys(SECTIONS, _DROPPED)
    text = text or ""
    heads = "|".join(SECTIONS)
    parts = re.split(rf"^({heads}):[ ]*\n", text, flags=re.MULTILINE)
    sections = {
        head: inspect.cleandoc(" " * 4 + body.strip("\n"))
        for head, body in zip(parts[1::2], parts[2::2], strict=True)
    }
    if tuple(sections) != SECTIONS:
        raise ValueError(f"{judge.__name__}: the docstring needs the sections {SECTIONS}")
    return parts[0].strip(), {h: re.sub(r"\n(?=\S)", " ", b).strip() for h, b in sections.items()}


def all_rules() -> dict[str, Rule]:
    """Return every rule by code, in the order in which the families declare them."""
    return dict(_RULES)


def checked_overrides(overrides: Mapping[str, float]) -> dict[str, float]:
    """Return limits such as {"KV001.enter_usage": 0.95} after checking that they exist.

    Raises:
        UsageError: no such rule or limit, or not a number.
    """
    for key, value in overrides.items():
        code, _, name = key.partition(".")
        found = _RULES.get(code)
        if found is None:
            raise UsageError(f"no rule {code}", hint="`loganalyze explain` lists all rules")
        if name not in found.limits:
            known = ", ".join(f"{code}.{n}" for n in found.limits) or "none"
            raise UsageError(
                f"{code} has no limit {name or '(none given)'}", hint=f"limits: {known}"
            )
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            raise UsageError(f"{key}: {value!r} is not a finite number")
        if found.limits[name].unit == "fraction" and not 0 <= value <= 1:
            raise UsageError(
                f"{key}: {value:g} is not between 0 and 1",
                hint=f"it is a fraction: {found.limits[name].meaning}",
            )
        if value < 0:
            raise UsageError(
                f"{key}: {value:g} is below 0", hint=f"it is: {found.limits[name].meaning}"
            )
    return {key: float(value) for key, value in overrides.items()}


def in_order() -> list[Rule]:
    """Return the rules so that each comes after those whose findings it reads."""
    done: dict[str, Rule] = {}

    def visit(one: Rule) -> None:
        for code in one.after:
            if code not in done:
                visit(_RULES[code])
        done.setdefault(one.code, one)

    for one in _RULES.values():
        visit(one)
    return list(done.values())


def run_session(signals: Signals, overrides: Mapping[str, float], run: Run) -> list[Outcome]:
    """Run every rule on one session of a run. A rule that raises never stops the others."""
    found: dict[str, Finding] = {}
    outcomes = {}
    case = Case(signals, found, run)
    for one in in_order():
        outcome = _judged(one, case, overrides)
        outcomes[one.code] = outcome
        if outcome.finding:
            found[one.code] = outcome.finding
    return [outcomes[code] for code in _RULES]


def _judged(one: Rule, case: Case, overrides: Mapping[str, float]) -> Outcome:
    limits = {n: overrides.get(f"{one.code}.{n}", limit.value) for n, limit in one.limits.items()}
    session = case.signals.session.id

    def outcome(status: CheckStatus, reason: str, finding: Finding | None = None) -> Outcome:
        return Outcome(
            one.code,
            status,
            reason,
            finding,
            session,
            limits,
            case.judged,
            case.length,
            case.doubt,
        )

    lacking = missing(one, case.data.batch)
    if one.needs and not lacking and case.signals.servers > 1:
        lacking = case.doubt
    if lacking:
        return outcome("not_applicable", f"cannot tell from this log: {lacking}")
    try:
        answer = one.judge(case, limits)
    except NotApplicable as reason:
        return outcome("not_applicable", f"cannot tell from this log: {reason}")
    except Exception as error:  # a faulty rule must not hide what the others found
        return outcome("error", f"{type(error).__name__}: {error}")
    if isinstance(answer, Clear):
        short = _too_short(one, case, limits)
        if short:
            return outcome("not_applicable", f"cannot tell from this log: {short}")
        return outcome("clear", answer.reason)
    finding = replace(
        answer,
        code=one.code,
        name=one.name,
        session=session,
        limits=limits,
        why=one.sections["Why it is slow"],
    )
    return outcome("fired", finding.summary, finding)


def _too_short(one: Rule, case: Case, limits: Limits) -> str:
    """Return why a log that does not show something cannot clear it, and what would show it.

    Empty where the log is long enough to have shown it, and for one without statistics lines,
    which a rule clears by other lines.
    """
    takes = limits.get("report_s", 0.0)
    if not case.ranks or (one.at_once and case.excerpt):
        return ""
    stamped = any(rank.clock != "none" for rank in case.ranks)
    if not case.excerpt and not (stamped and case.signals.span_s < takes):
        return ""
    return (
        f"{case.length} cannot show it; {duration(max(takes, EXCERPT_S))} or more of the "
        "server's whole log under load would"
    )


#: What a missing column would take. Columns not named here: the statistics lines themselves.
_WOULD_LOG = {
    "kv_usage": "no token usage is printed on its lines",
    "queue_req": "its lines print no #queue-req",
    "gen_throughput": "it has no decode lines with gen throughput",
    "token": "its decode lines print no #token",
    "full_token": "its decode lines print no #token",
    "accept_len": "its decode lines print no accept len (speculative decoding is off)",
    "swa_token_usage": "its lines print no swa token usage (no sliding-window pool)",
    "mamba_usage": "its lines print no mamba usage (no Mamba pool; printed from 0.5.3.post2)",
    "cuda_graph": "its decode lines print no cuda graph field (printed from 0.4.6.post4)",
    "prealloc_req": "its lines print no #prealloc-req (printed by PD servers from 0.5.3)",
    "transfer_req": "its lines print no #transfer-req (printed by PD decode servers from 0.5.3)",
    "new_token": "it has no prefill lines",
    "cached_token": "its prefill lines print no #cached-token",
}


def missing(one: Rule, batch: pl.DataFrame) -> str:
    """Return what the rule needs and the log lacks, in words; empty if nothing."""
    if one.needs and not batch.height:
        return NO_STATISTICS
    for need in one.needs:
        columns = need.split("|")
        if all(batch[c].null_count() == batch.height for c in columns):
            return _WOULD_LOG.get(columns[0], f"no line prints {' or '.join(columns)}")
    return ""
