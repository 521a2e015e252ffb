"""Where a condition held, per rank, and how to say so: the words that all rules share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import polars as pl

from loganalyze import derive, timeline
from loganalyze import episodes as eps
from loganalyze.capacity.server import sharing_ranks
from loganalyze.episodes import Span
from loganalyze.lengths import covered, covered_s, duration
from loganalyze.model import Action, Confidence, Episode, Estimate, Evidence, Scalar, Severity
from loganalyze.rules import deaths, flags
from loganalyze.rules.registry import Case, NotApplicable
from loganalyze.signals import Rank
from loganalyze.timeline import as_float

#: A condition that held this long and for this share of the log is critical, else a warning.
CRITICAL_S = 300.0
CRITICAL_SHARE = 0.10

#: Confidence: high needs this much time and this many lines; below the last it is low.
_HIGH_S = 60.0
_HIGH_LINES = 20
_LOW_S = 30.0


@dataclass(frozen=True)
class Held:
    """The spans in which a condition held on one rank."""

    rank: Rank
    spans: Sequence[Span]

    @cached_property
    def mask(self) -> pl.Series:
        """True in the cells of the spans."""
        return eps.mask_of(self.spans, self.rank.grid.height)

    @cached_property
    def live(self) -> pl.Series:
        """True in the cells of the spans, gaps left out."""
        return self.mask & ~self.rank.grid["gap"]

    @cached_property
    def cells(self) -> pl.DataFrame:
        """The grid inside the spans, gaps left out."""
        return self.rank.grid.filter(self.live)

    @cached_property
    def inside(self) -> pl.Series:
        """Which of the rank's lines lie inside the spans."""
        return self.mask.gather(self.rank.cell_of)

    @cached_property
    def lines(self) -> pl.DataFrame:
        """The rank's lines inside the spans."""
        return self.rank.lines.filter(self.inside)

    @cached_property
    def decode(self) -> pl.DataFrame:
        """The rank's decode lines inside the spans."""
        return self.lines.filter("decode")

    @cached_property
    def prefill(self) -> pl.DataFrame:
        """The rank's prefill lines inside the spans."""
        return self.lines.filter("prefill")

    @cached_property
    def episodes(self) -> list[Episode]:
        """The spans with lines and stamps."""
        return eps.episodes(self.rank, self.spans)

    @property
    def seconds(self) -> float:
        """Total length."""
        return sum(end - first for first, end in self.spans) * self.rank.step_s

    @cached_property
    def tokens_per_req(self) -> float | None:
        """KV tokens per running request: sum of tokens over sum of running, decode lines."""
        token = pl.col("own_token")
        rows = self.decode.filter(token.is_not_null() & (pl.col("running_req") > 0))
        total = rows.select_seq(token.sum(), pl.col("running_req").sum()).row(0)
        return float(total[0]) / float(total[1]) if total[1] else None

    def mean(self, column: str) -> float | None:
        """Return the time-weighted mean of a grid column inside the spans."""
        return as_float(self.rank.grid[column].filter(self.live).mean())

    def total(self, column: str) -> float:
        """Return the sum of a grid column inside the spans."""
        return as_float(self.rank.grid[column].filter(self.live).sum(), 0.0)

    def average(self, values: pl.Expr) -> float:
        """Return the time-weighted mean of an expression over the grid inside the spans."""
        return as_float(self.cells.select_seq(values.mean()).item(), 0.0)

    def averaged(
        self,
        label: str,
        column: str | pl.Expr,
        printed: str | pl.Expr,
        unit: str = "",
        digits: int = 1,
    ) -> Evidence:
        """Return a time-weighted mean with the lines it is of, and the one that prints most alike.

        Args:
            label: what it is called.
            column: of the grid.
            printed: the same, of lines.
            unit: of the value.
            digits: to round it to.
        """
        value = self.mean(column) if isinstance(column, str) else self.average(column)
        said = pl.col(printed) if isinstance(printed, str) else printed
        rows = self.lines.with_columns_seq(_value=said).drop_nulls("_value")
        # A prefill line prints the batch before its requests joined.
        if rows["decode"].any():
            rows = rows.filter("decode")
        if value is None or not rows.height:
            return shown(label, value, unit, digits=digits)
        near = alike(rows, pl.col("_value"), value)
        return shown(label, value, unit, near, f"time-weighted mean of {these(rows)}", digits)

    def line(self, column: str | pl.Expr, *, least: bool = False) -> tuple[str | None, int | None]:
        """Return (source, line_no) of the line with the highest (lowest) value of a column."""
        values = pl.col(column) if isinstance(column, str) else column
        rows = self.lines.with_columns_seq(_value=values).drop_nulls("_value")
        if not rows.height:
            return None, None
        place = rows["_value"].arg_min() if least else rows["_value"].arg_max()
        return self.at(rows, int(place or 0))

    @staticmethod
    def at(rows: pl.DataFrame, place: int) -> tuple[str | None, int | None]:
        """Return (source, line_no) of one of some rows."""
        return rows["source"][place], int(rows["line_no"][place])


def alike(rows: pl.DataFrame, values: pl.Expr, value: float) -> tuple[str | None, int | None]:
    """Return where the line stands that prints most nearly a value which is of many lines."""
    printed = rows.with_columns_seq(_value=values).drop_nulls("_value")
    if not printed.height:
        return None, None
    return Held.at(printed, int((printed["_value"] - value).abs().arg_min() or 0))


def largest_prefill(held: Held) -> list[Evidence]:
    """Return the largest prefill batch, with its line."""
    rows = held.prefill.drop_nulls("new_token")
    if not rows.height:
        return []
    at = int(rows["new_token"].arg_max() or 0)
    return [
        shown(
            "largest prefill batch",
            rows["new_token"][at],
            "tokens",
            Held.at(rows, at),
            "#new-token",
        )
    ]


def these(rows: pl.DataFrame) -> str:
    """Say which lines some rows are, from the first to the last: `decode lines 12 to 90`.

    Where they are of several files, each with its own: `lines 12 of a.log.1 to 90 of a.log`.
    """
    if not rows.height:
        return "no line"
    decode = rows["decode"]
    kind = "decode line" if decode.all() else "line" if decode.any() else "prefill line"
    first, last = (rows.select_seq("source", "line_no").row(place) for place in (0, -1))
    return derive.from_to(kind, first, last)


def over(rows: pl.DataFrame) -> str:
    """Say what a share or a sum is over: `over prefill lines 12 to 90 (44 of them)`.

    Such a value stands in no line of its own; a row of a long log may stand for several.
    """
    n = int(rows["lines"].sum()) if rows.height else 0
    return f"over {these(rows)}{f' ({n:,} of them)' if n > 1 else ''}"


def hold(ranks: Iterable[Rank], judge: Callable[[Rank], Sequence[Span]]) -> list[Held]:
    """Judge each rank apart; ranks without a span are left out, the longest comes first."""
    found = [Held(rank, spans) for rank in ranks if (spans := judge(rank))]
    return sorted(found, key=lambda held: -held.seconds)


def whole(rank: Rank) -> Held:
    """Return all of a rank's log, as if a condition held from its start to its end."""
    return Held(rank, [(0, rank.grid.height)])


def all_episodes(found: Sequence[Held]) -> list[Episode]:
    """Return the episodes of all ranks, by time."""
    rows = [
        (span[0], episode)
        for held in found
        for span, episode in zip(held.spans, held.episodes, strict=True)
    ]
    return [episode for _, episode in sorted(rows, key=lambda row: row[0])]


def over_ranks(found: Sequence[Held], spans: Sequence[Span]) -> list[Episode]:
    """Return one episode for each span of what holds for all ranks together, naming none."""
    out = []
    for span in spans:
        own = [
            held.rank.lines.filter(
                (pl.col("t") / held.rank.step_s).floor().is_between(span[0], span[1] - 1)
            ).select_seq("t", "source", "line_no", "time")
            for held in found
        ]
        rows = pl.concat(own).sort("t", maintain_order=True)
        if not rows.height:
            continue
        first, last = (rows.row(place, named=True) for place in (0, -1))
        one = len(found) == 1
        out.append(
            Episode(
                first["time"],
                last["time"],
                first["line_no"],
                last["line_no"],
                found[0].rank.label if one else None,
                first["source"],
                last["source"] if last["source"] != first["source"] else None,
            )
        )
    return out


def _anywhere(found: Sequence[Held]) -> list[Span]:
    """Return the spans in which the condition held on any rank."""
    return eps.joined(sorted(span for held in found for span in held.spans), 0)


def seconds(found: Sequence[Held]) -> float:
    """Return the time in which the condition held on any rank."""
    return sum((end - first) * found[0].rank.step_s for first, end in _anywhere(found))


def length_s(found: Sequence[Held]) -> float:
    """Return the length that is said: from stamp to stamp, as beside the lines.

    It is that of the cells where no spell has two stamps.
    """
    return covered_s(all_episodes(found)) or seconds(found)


def spell(
    case: Case, found: Sequence[Held], counted: pl.Expr | None = None, of: str | None = None
) -> str:
    """Say for how long and since when: `for 42.7 min (95% of the log) from 11:31:52`.

    A share is of the session's time; where the log holds several, it names the session.

    An excerpt has no durations: its lines are said, of the spells those that are `counted`, of
    all lines or those of one phase (`of`: decode or prefill).
    """
    episodes = all_episodes(found)
    first = episodes[0]
    clock = f" from {first.start:%H:%M:%S}" if first.start else f" from line {first.first_line}"
    ranks = ranks_of(case, found)
    if case.excerpt:
        phase = pl.lit(True) if of is None else pl.col(of)
        keep = phase if counted is None else phase & counted
        lines = sum(int(held.lines.filter(keep)["lines"].sum()) for held in found)
        all_lines = sum(int(rank.lines.filter(phase)["lines"].sum()) for rank in case.ranks)
        kind = f"{of} line" if of else "line"
        return (
            f"in {lines} of {all_lines} {kind}s{clock}{ranks}"
            if all_lines > 1
            else f"in the only {kind}"
        )
    total, own = length_s(found), case.data.session
    span_s = case.signals.span_s
    if own.start and own.end:
        span_s = (own.end - own.start).total_seconds()
    share = total / max(span_s, total, 1.0)
    # Those of several ranks at one time are one.
    spells = len(covered(episodes)) or len(_anywhere(found))
    pieces = f" in {spells} spells" if spells > 1 else ""
    whole = f"session {case.data.session.id}" if len(case.sessions) > 1 else "the log"
    return f"for {duration(total)} ({share:.0%} of {whole}){pieces}{clock}{ranks}"


def ranks_of(case: Case, found: Sequence[Held]) -> str:
    """Name the ranks where not all of several are meant: ` on DP0 TP0, DP3 TP6`."""
    if len(case.ranks) < 2 or len(found) == len(case.ranks):
        return ""
    names = [held.rank.label or "a rank without a name" for held in found]
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f" on {', '.join(names[:4])}{more}"


def thrown_back(times: float) -> str:
    """Say how often running requests were thrown back to the queue."""
    return (
        "a running request was thrown back"
        if times == 1
        else f"{times:,.0f} times a running request was thrown back"
    )


def severity(case: Case, found: Sequence[Held]) -> Severity:
    """Critical if the condition held long and for a good part of the log, else a warning."""
    total = seconds(found)
    long = total >= CRITICAL_S and total >= CRITICAL_SHARE * case.signals.span_s
    return Severity.CRITICAL if long else Severity.WARNING


def confidence(
    case: Case,
    found: Sequence[Held],
    *,
    inferred: bool = False,
    competing: bool = False,
    config: bool | None = None,
) -> Confidence:
    """Grade how sure a finding is.

    High: at least 60 s and 20 lines, the start-up lines printed, no rival cause near. Low: less
    than 30 s, an inferred pool or cap that the rule hangs on, or a rival. Medium: between.
    """
    total = seconds(found)
    lines = sum(int(held.inside.sum()) for held in found)
    if case.excerpt or total < _LOW_S or inferred or competing:
        return "low"
    if config is None:
        config = case.signals.session.config.kv_capacity_tokens is not None
    stamped = all(held.rank.clock == "stamps" for held in found)
    good = total >= _HIGH_S and lines >= _HIGH_LINES and config and stamped
    return "high" if good else "medium"


def outside(case: Case, rank: Rank, *codes: str) -> pl.Series:
    """Return where none of some earlier findings holds on this rank."""
    out = ~rank.never
    found = [case.earlier[code] for code in codes if code in case.earlier]
    if not found:
        return out
    lines, t = rank.lines, rank.lines["t"]
    ends = [
        (source, line_no)
        for finding in found
        for one in finding.episodes
        if one.rank in (None, rank.label)
        for source in (one.source or lines["source"][0],)
        for source, line_no in (
            (source, one.first_line),
            (one.last_source or source, one.last_line),
        )
    ]
    schema = {name: lines[name].dtype for name in ("source", "line_no")}
    places = timeline.places(lines, pl.DataFrame(ends, schema, orient="row"))
    inside = list[Span]()
    for start, stop in zip(places[::2], places[1::2], strict=True):
        if start is None:
            continue
        first, last = int(rank.places.search_sorted(start)), lines.height - 1
        if stop is not None:  # else it ends in a log in which this rank printed nothing
            last = int(rank.places.search_sorted(stop, "right")) - 1
        if first <= last:
            inside.append((int(t[first] / rank.step_s), int(t[last] / rank.step_s) + 1))
    return out & ~eps.mask_of(eps.joined(sorted(inside), 0), out.len())


def others_busy(case: Case, rank: Rank, start: float, end: float) -> bool:
    """Whether another rank printed lines during a silence of this one, from start to end (s)."""
    for other in case.ranks:
        if other is rank:
            continue
        t = other.lines["t"]
        inside = int(t.search_sorted(end - 2)) - int(t.search_sorted(start + 2))
        # A rank whose lines were merged printed some, but where its own silence was kept.
        merged = other.timeline.merged and not any(
            gap.start_s <= start + 2 and gap.end_s >= end - 2 for gap in other.gaps
        )
        if inside > 0 or merged:
            return True
    return False


def cells_of(rank: Rank, values: pl.Series, beyond: float | None = None) -> pl.Series:
    """Return a series over another rank's cells in those of this one, with `beyond` after its end.

    All ranks count from one start, in cells of one width.
    """
    lacking = rank.grid.height - values.len()
    return values.extend_constant(beyond, lacking) if lacking > 0 else values[: rank.grid.height]


def sum_of(ranks: Sequence[Rank], value: pl.Expr) -> pl.Series:
    """Return the sum of an expression over the grids of all ranks; null counts as 0."""
    tallest = max(ranks, key=lambda rank: rank.grid.height)
    parts = [cells_of(tallest, rank.select(value.fill_null(0)), beyond=0) for rank in ranks]
    return sum(parts[1:], parts[0])


def waiting(case: Case, *, printed: bool = False) -> pl.Expr:
    """Return how many requests wait, over the grid, or over lines where `printed`.

    On a PD decode server most wait in #prealloc-req, on a PD prefill server for their bootstrap:
    #queue-req holds none of them.
    """
    suffix, role = "_req" if printed else "", case.signals.session.role
    queue = pl.col(f"queue{suffix}")
    if role == "decode":
        return queue + pl.col(f"prealloc{suffix}").fill_null(0)
    if role == "prefill":
        names = ("bootstrap_req", "unbootstrapped_req") if printed else ("bootstrap",)
        return queue + pl.coalesce(*names, f"prealloc{suffix}").fill_null(0)
    return queue


def ends_short() -> pl.Expr:
    """Return whether most prefill batches end before they are as large as they may be.

    With requests waiting they end for want of KV, or at the cap, however busy prefill keeps the
    GPU; false where the largest batch is unknown.
    """
    return pl.col("short").fill_null(0) > 0.5


def minimum(case: Case, seconds_: float) -> float:
    """Return the shortest spell to report; none for an excerpt, which has no durations."""
    return 0.0 if case.excerpt else seconds_


# -- evidence -----------------------------------------------------------------------------


def shown(
    label: str,
    value: Scalar,
    unit: str = "",
    where: tuple[str | None, int | None] = (None, None),
    formula: str = "",
    digits: int | None = None,
) -> Evidence:
    """Return one number with its line; floats are rounded to `digits`."""
    if isinstance(value, float) and digits is not None:
        value = round(value, digits)
    return Evidence(label, value, unit, where[0], where[1], formula=formula)


#: Failures and messages so far apart (s) are two episodes.
_JOIN_S = 600.0


def spells_of(rows: pl.DataFrame, join_s: float = _JOIN_S) -> list[Episode]:
    """Return the spells of some records, by line: those whose stamps lie further apart are two."""
    apart = pl.col("time").diff().dt.total_seconds() > join_s
    spells = rows.group_by(apart.fill_null(False).cum_sum().alias("_n"), maintain_order=True).agg(
        pl.col("time").first().alias("start"),
        pl.col("time").last().alias("end"),
        pl.col("line_no").first().alias("first"),
        pl.col("line_no").last().alias("last"),
        pl.col("source").first(),
        pl.when(pl.col("source").last() != pl.col("source").first())
        .then(pl.col("source").last())
        .alias("last_source"),
    )
    return [
        Episode(r["start"], r["end"], r["first"], r["last"], None, r["source"], r["last_source"])
        for r in spells.iter_rows(named=True)
    ]


def config_line(case: Case, line: int | None) -> tuple[str | None, int | None]:
    """Return where a start-up value was printed."""
    return (case.signals.session.source, line) if line is not None else (None, None)


#: What the events say whose lines hold nothing else.
_SAID = {
    "sigquit": "SIGQUIT from a child that died",
    "health_check_failed": "Health check failed",
    "kv_oom": "the KV pool had no room for a batch",
    "traceback": "a traceback",
    "retract": "requests thrown back, the KV pool was full",
    "exit_code": "a process ended",
    "transfer_failed": "a KV transfer failed",
    "flush_refused": "Cache not flushed",
    "ready": "The server is ready",
}


def event_text(row: Mapping[str, Any]) -> str:
    """Return what an event's line says, with the exit code it may name."""
    kind = row["kind"]
    said = str(row["message"] or row["error"] or _SAID.get(kind, kind)).strip()
    return said if row["exit_code"] is None else f"{said}, exit code {row['exit_code']}"


def need_stamps(case: Case) -> None:
    """Raise NotApplicable where no line carries a stamp: silences would be unseen."""
    if all(rank.clock != "stamps" for rank in case.ranks):
        raise NotApplicable("its lines carry no stamps, so silences do not show")


def need_pool_size(case: Case) -> None:
    """Raise NotApplicable where no rank's pool size is known."""
    if not any(rank.kv_tokens for rank in case.ranks):
        raise NotApplicable("the pool size is unknown: the max_total_num_tokens= line is missing")


def pool_evidence(case: Case) -> list[Evidence]:
    """Return the pool size and where it comes from."""
    capacity = case.signals.capacity
    if capacity.kv_tokens is None:
        return []
    printed = capacity.kv_tokens_source == "log"
    return [
        shown(
            "KV pool" if printed else "KV pool (inferred)",
            capacity.kv_tokens,
            "tokens",
            config_line(case, capacity.kv_tokens_line),
            "max_total_num_tokens" if printed else "#token / token usage",
        )
    ]


# -- advice -------------------------------------------------------------------------------


def act(
    case: Case,
    text: str,
    flag: str | None = None,
    proposed: Scalar = None,
    effect: str = "",
    present: Scalar = None,
) -> list[Action]:
    """Return one thing to do, or nothing if the log's release lacks the flag.

    Values are those of one DP rank, as the statistics lines count; flags that DP attention
    divides are shown as they are given to the server, and flags without a value as on or off.
    `present` defaults to the flag's value in the printed server arguments. A higher memory
    fraction is never proposed to a server that ran out of GPU memory, and to others only up to
    what `deaths.memory_limit` leaves, with the reason.
    """
    if flag is None:
        return [Action(text, None, None, None, effect)]
    session = case.signals.session
    name = flags.lookup(flag).name
    known = flags.available(flag, session.release_range, session.config.args)
    if not (known or _named_by_server(case, name)):
        return []
    present, proposed, each = _as_given(case, name, present, proposed)
    effect = "; ".join(filter(None, (effect, each)))
    limit = memory_limit(case) if name == MEMORY_FRACTION else None
    if limit is not None and _rises(present, proposed):
        too_high = isinstance(present, int | float) and present >= limit.highest
        if limit.session == session.id or too_high:
            return []
        text += f"; stay at or below {limit.highest:g}: {limit}"
        if isinstance(proposed, float):
            proposed = min(proposed, limit.highest)
    if present is not None and present == proposed:
        return []
    return [Action(text, f"--{name}", present, proposed, effect)]


def _named_by_server(case: Case, name: str) -> bool:
    """Whether an error of this session names a flag: then its release has it."""
    said = pl.concat_str("message", "traceback", separator=" ", ignore_nulls=True)
    errors = case.data.event.filter(pl.col("kind").is_in(["exception", "traceback", "error"]))
    return bool(errors.select_seq(said.str.contains(rf"--{name}\b").any()).item())


#: The flag that a death out of GPU memory bounds.
MEMORY_FRACTION = "mem-fraction-static"


def memory_limit(case: Case) -> deaths.MemoryLimit | None:
    """Return what deaths out of memory leave of the memory fraction; None without any."""
    return deaths.memory_limit(case.signals.session.id, case.run.memory_limits)


def _as_given(
    case: Case, name: str, present: Scalar, proposed: Scalar
) -> tuple[Scalar, Scalar, str]:
    """Return present and proposed value as the server is given them, and what a rank gets."""
    args = case.signals.session.config.args
    value = args.get(name.replace("-", "_"))
    printed = value if isinstance(value, str | int | float | bool) else None
    ranks = sharing_ranks(case.data)
    if name in (flags.CAP, flags.CHUNK) and ranks > 1:
        whole = printed if name == flags.CAP else _times(printed, ranks)
        each = f"{proposed:,} on each of {ranks} DP ranks" if isinstance(proposed, int) else ""
        given = whole if whole is not None else _times(present, ranks)
        return given, _times(proposed, ranks), each
    if name == "schedule-conservativeness" and ranks > 1 and isinstance(printed, int | float):
        factor = 1 / flags.DP_CONSERVATIVENESS
        each = f"DP attention takes {flags.DP_CONSERVATIVENESS:g} times the given value"
        return _times(printed, factor), _times(proposed, factor), each
    return printed if present is None else present, proposed, ""


def _times(value: Scalar, factor: float) -> Scalar:
    """Return a number times a factor; words, None and switches as they are."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return value * factor if isinstance(factor, int) else round(value * factor, 2)


def _rises(present: Scalar, proposed: Scalar) -> bool:
    """Whether a proposal is more than the present value; words are, unless they say lower."""
    if isinstance(proposed, str):
        return not proposed.startswith("lower")
    if isinstance(proposed, int | float) and isinstance(present, int | float):
        return proposed > present
    return True


def gain_text(x: Estimate) -> str:
    """Say a predicted throughput factor with its range, and where the fit lies at its edge."""
    low, mid, high = (f"{value:.2f}" for value in (x.low, x.mid, x.high))
    text = f"about {mid} times the throughput ({low} to {high}"
    if low < mid < high or low == high:
        return f"{text})"
    end = "low" if mid == low else "high"
    return f"{text}; the fitted step model is the {end} end of those that the lines allow)"


def gains(x: Estimate | None) -> bool:
    """Whether a predicted change is worth naming first; one without a prediction is."""
    return x is None or x.mid >= 1.02
