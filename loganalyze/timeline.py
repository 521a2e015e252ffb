"""The lines of each DP rank in order, with a clock, their state and the decode intervals.

Three things that raw lines do not say and everything downstream needs:

* Time. Stamps have one-second resolution and no zone, may be missing, and may jump. `t` is
  seconds from the session's start, never decreasing; the lines of one second are spread
  evenly over it in file order. Without stamps the decode interval is the clock.
* How many requests run. A decode line prints the batch just decoded, a prefill line the
  batch *before* the new requests joined it. Mixing both makes a reached cap look unreached.
* The interval. `gen throughput` covers the time since the decode line before, so
  steps x running x accepted / throughput is that time, far finer than the stamps. A row of a
  very long log stands for several printed lines (thin.py), of which it knows the last
  interval, or only marks an extreme between them (`lines` 0).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, overload

import polars as pl

from loganalyze import derive
from loganalyze.model import SessionData

#: A silence is a gap beyond this many seconds and this many times the usual spacing.
GAP_S = derive.SILENCE_S
GAP_SPACINGS = 8.0
#: A silence as long as the watchdog's default is one whatever the usual spacing, which in a log
#: of few lines is the silence itself.
LONG_GAP_S = 300.0

#: Decode steps between two decode lines unless the log says otherwise.
DEFAULT_INTERVAL = 40
#: A longer one is damage.
MAX_INTERVAL = 1_000_000

#: Without stamps: fewer decode intervals than this are no clock, and neither are longer ones
#: (the watchdog's default is 300 s for one step).
MIN_INTERVALS = 20
MAX_INTERVAL_S = 300.0

#: Stamps say the time of two lines to less than a second each, and the time between them to
#: within one.
_STAMP_S = 2.0
_ODD_S = 1.0
#: ... and the batches at its ends to this share; a tenth of the lines may be off by more.
_ODD_SHARE, _ODD_LINES = 0.10, 0.10
#: Requests that come within an interval over its batch, from which its ends tell little of it.
_TURNOVER = 0.5

#: Full prefill batches, their share of all, and how often a prompt must go on after one, to tell
#: the size of a chunk from them.
_FULL_LINES, _FULL_SHARE, _GOES_ON = 10, 0.05, 0.8

Clock = Literal["stamps", "steps", "none"]


@overload
def as_float(value: object) -> float | None: ...
@overload
def as_float(value: object, default: float) -> float: ...
def as_float(value: object, default: float | None = None) -> float | None:
    """Return an aggregate of a column as a float; `default` where there was nothing to sum."""
    return float(value) if isinstance(value, int | float) else default


def slope(x: pl.Series, y: pl.Series) -> float | None:
    """Return the least-squares slope of y over x; None where x does not vary."""
    frame = pl.DataFrame({"x": x.cast(pl.Float64), "y": y.cast(pl.Float64)})
    cov, var = frame.select_seq(cov=pl.cov("x", "y"), var=pl.col("x").var()).row(0)
    return float(cov) / float(var) if var and cov is not None else None


def near_cap(cap: int) -> float:
    """Return the running requests from which a cap counts as reached.

    A place is empty for a moment between one request and the next: up to 2 of them or 3 %, of
    which a small cap leaves fewer. All places of a cap below 8 must be taken.
    """
    return cap - max(min(2.0, cap // 8), 0.03 * cap if cap > 8 else 0.0)


@dataclass(frozen=True, slots=True)
class Gap:
    """A silence of one rank.

    Attributes:
        before: row (in `Timeline.lines`) of the line before it; `before + 1` is the next.
        start_s: time of the line before; `end_s`: time of the line after.
        idle: True if the lines around it show that there was no work.
        busy: True if the line before it shows running or waiting requests.
    """

    before: int
    start_s: float
    end_s: float
    idle: bool
    busy: bool

    @property
    def duration_s(self) -> float:
        """Seconds of silence."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Timeline:
    """The lines of one DP rank (the only one where there is no data parallelism).

    Attributes:
        dp_rank: its number; None without DP.
        label: rank words as printed, such as `DP1 TP4`; None where none are printed.
        clock: what `t` counts: `stamps`; `steps` (no stamps: decode steps x step time);
            `none` (neither: `t` counts lines, and durations cannot be judged).
        interval: decode steps from one decode line to the next.
        chunk: tokens of the largest prefill batch, see `_chunk`; None if unknown.
        lines: rows in order, duplicates left out, BATCH schema plus
            `row`, `t` (s, no nulls), `spacing_s` (since the printed line before),
            `decode`, `prefill` (flags),
            `cut` (a prompt was cut at the chunk size: its request does not run yet),
            `continued` (the batch goes on with a cut prompt),
            `started` (requests that a prefill line lets in: #new-seq counts a prompt again with
            each of its chunks; null on other lines),
            `running` (requests that decode after the line; new ones count),
            `own_token` (KV tokens of running requests, see `own_token`),
            and on decode lines that are no mere extremes, about the time since the one before:
            `dt_s` (one interval, from throughput), `stamp_dt_s` (from stamps), `r_mean`, `t_mean`,
            `d_tokens` (decoded), `n_prefill`, `d_new_token`, `d_new_seq`, `completed`
            (requests that finished), `last_prefill` and `last_new_token` (prefill batches and
            their tokens in the last interval, which is the only one where a row is one line),
            `r_change` (relative), `after_gap`, `first` (flags), and of the other ranks that step
            with this one `beside_prefill`, `beside_new_token` (their prefill batches and new
            tokens since the line before) and `last_beside_prefill`, `last_beside_new_token` (in
            the last interval); 0 where no rank steps with it.
        gaps: silences, in order; empty without stamps.
        lost: its retraction events (`retractions`), each with the `row` of the line before it;
            -1 where there is none.
    """

    dp_rank: int | None
    label: str | None
    clock: Clock
    interval: int
    chunk: int | None
    lines: pl.DataFrame
    gaps: Sequence[Gap]
    lost: pl.DataFrame

    @property
    def merged(self) -> bool:
        """Whether rows stand for several printed lines."""
        return as_float(self.lines["lines"].max(), 1.0) > 1

    @property
    def span_s(self) -> float:
        """Seconds from the first line to the last; 0 without a clock."""
        if self.clock == "none" or self.lines.height < 2:
            return 0.0
        return float(self.lines["t"][-1] - self.lines["t"][0])


def build(data: SessionData) -> list[Timeline]:
    """Build one timeline per DP rank, in rank order."""
    return _side_by_side(data, [_timeline(data, rows) for rows in rank_rows(data.batch)])


def carried(data: SessionData) -> SessionData:
    """Return the session with its timelines, for all who ask for them later."""
    return replace(data, timelines=(data.batch, build(data)))


def of(data: SessionData) -> Sequence[Timeline]:
    """Return a session's timelines: those it carries, unless they are of other rows."""
    if data.timelines is not None and data.timelines[0] is data.batch:
        return data.timelines[1]
    return build(data)


def rank_rows(batch: pl.DataFrame) -> list[pl.DataFrame]:
    """Return the rows of each DP rank, without duplicates and without other PP or CP ranks.

    A frame that needs neither is passed on as it is: a copy of every column of a long log
    would cost more than all that follows.
    """
    own = batch
    if own["duplicate"].any():
        own = own.filter(~pl.col("duplicate").fill_null(False))
    dp = pl.when(pl.col("dp_rank") >= 0).then("dp_rank").otherwise(-1)
    for column in ("pp_rank", "attn_cp_rank"):
        if own[column].n_unique() > 1:
            own = own.filter(
                pl.col(column).is_null() | (pl.col(column) == pl.col(column).min().over(dp))
            )
    if not own.height:
        return []
    if own.select_seq(dp.n_unique()).item() == 1:
        return [own]
    parts = own.with_columns_seq(_dp=dp).partition_by("_dp", as_dict=True, include_key=False)
    return [part for _, part in sorted(parts.items())]


def own_token(data: SessionData) -> pl.Expr:
    """Return the KV tokens that running requests hold, over BATCH rows; null if unknown.

    A PD decode server also counts as used what is preallocated for requests in transfer. That
    share is printed as pre-allocated usage; where it is not, the tokens are shared evenly by
    the requests that run and those in transfer. A line with neither cannot tell.

    Source:
        DecodePreallocQueue.num_tokens_pre_allocated / max_total_num_tokens.
    """
    token = pl.coalesce("token", "full_token", "gpu_token")
    if data.session.role != "decode":
        return token
    config = data.session.config
    size = config.kv_capacity_tokens or config.kv_pool_tokens
    usage = pl.when(pl.col("kv_usage") > 0).then("kv_usage")
    pool = pl.lit(size, pl.Float64) if size else token / usage
    running = pl.col("running_req")
    # At most all of it: the share is printed with two decimals.
    share = pl.col("pre_allocated_usage") * pool
    ahead = pl.when(share.is_not_null()).then(
        pl.min_horizontal(share, token.cast(pl.Float64)).clip(0)
    )
    shared = token * running / (running + pl.col("transfer_req"))
    return (
        pl.when(pl.col("pre_allocated_usage") == 0)
        .then(token.cast(pl.Float64))
        .when(pl.col("pre_allocated_usage").is_not_null())
        .then(token - ahead)
        .when(running > 0)
        .then(shared)
    )


def retractions(data: SessionData, dp_rank: int | None) -> pl.DataFrame:
    """Return the retraction events of one DP rank: no duplicates, no test mode."""
    if not (data.event["kind"] == "retract").any():
        return data.event.clear()
    event = data.event.filter(
        (pl.col("kind") == "retract")
        & ~pl.col("duplicate").fill_null(False)
        & ~pl.col("debug").fill_null(False)
    )
    if dp_rank is None or dp_rank < 0:
        return event
    return event.filter(pl.col("dp_rank").is_null() | (pl.col("dp_rank") == dp_rank))


def _timeline(data: SessionData, rows: pl.DataFrame) -> Timeline:
    n_steps = _interval(data, rows)
    chunk = _chunk(data, rows)
    lines, clock = _with_clock(rows, data, n_steps)
    lines = _with_states(lines, data, chunk)
    gaps = _gaps(lines) if clock == "stamps" else []
    dp_rank = rows["dp_rank"][0]
    lost = retractions(data, dp_rank)
    lost = lost.with_columns_seq(row=row_before(lines, lost))
    return Timeline(
        dp_rank=dp_rank if dp_rank is not None and dp_rank >= 0 else None,
        label=rows.head(1).select_seq(derive.rank_text()).item(),
        clock=clock,
        interval=n_steps,
        chunk=chunk,
        lines=_with_intervals(lines, lost, n_steps, chunk, gaps, clock),
        gaps=gaps,
        lost=lost,
    )


def _interval(data: SessionData, rows: pl.DataFrame) -> int:
    """Return the decode steps between two decode lines.

    From `--decode-log-interval`; where the log does not print the arguments 40, unless stamps
    and throughput say otherwise: steps = throughput x time / (running x accepted tokens).
    """
    printed = data.session.config.arg("decode_log_interval")
    if isinstance(printed, int) and 0 < printed <= MAX_INTERVAL:
        return printed
    lines = pl.col("lines").fill_null(1)
    used = ("time", "phase", "gen_throughput", "running_req", "accept_len", "lines")
    decode = rows.select_seq(used).filter(
        (pl.col("phase") == "decode") & (pl.col("gen_throughput") > 0) & (lines > 0)
    )
    decode = decode.select_seq(
        tokens=pl.col("gen_throughput") * pl.col("time").diff().dt.total_milliseconds() / 1000,
        per_step=pl.col("running_req") * pl.col("accept_len").fill_null(1.0) * lines,
    )
    if decode.height < 20:
        return DEFAULT_INTERVAL
    counts = (pl.col("tokens") >= 0) & pl.col("per_step").is_not_null()
    tokens, per_step = decode.select_seq(pl.col("tokens", "per_step").filter(counts).sum()).row(0)
    if not per_step:
        return DEFAULT_INTERVAL
    seen = float(tokens / per_step)
    unclear = 0.7 * DEFAULT_INTERVAL <= seen <= 1.4 * DEFAULT_INTERVAL or seen < 0.5
    return DEFAULT_INTERVAL if unclear else round(min(max(1.0, seen), MAX_INTERVAL))


def _chunk(data: SessionData, rows: pl.DataFrame) -> int | None:
    """Return the tokens at which a rank's prefill batches are cut, or None.

    From the start-up lines; where the log lacks them, the largest batch, if many are as large
    and a prefill just after one finds no more requests running: a prompt goes on in it, and its
    chunks run back to back. Prompts of one length each add a running request instead.
    """
    printed = data.session.config.chunked_prefill_size
    if printed is not None:
        return printed if printed > 0 else None
    prefill = pl.col("phase") == "prefill"
    largest = rows.select_seq(pl.col("new_token").filter(prefill).max()).item()
    if not isinstance(largest, int):
        return None
    full = prefill & (pl.col("new_token") == largest) & (pl.col("lines").fill_null(1) == 1)
    running = pl.col("running_req")
    pairs = prefill & (full & (pl.col("new_seq") == 1)).shift(1) & (running > 0)
    batches, filled, followed, goes_on = rows.select_seq(
        prefill.sum(),
        full.sum().alias("full"),
        pairs.sum().alias("pairs"),
        (pairs & (running <= running.shift(1))).sum().alias("goes_on"),
    ).row(0)
    if filled < max(_FULL_LINES, _FULL_SHARE * batches) or not followed:
        return None
    return largest if goes_on >= _GOES_ON * followed else None


def _with_clock(rows: pl.DataFrame, data: SessionData, n_steps: int) -> tuple[pl.DataFrame, Clock]:
    """Add `t`: from stamps, else from decode intervals where there are enough, else lines."""
    if rows["time"].null_count() < rows.height:
        return rows.with_columns_seq(_stamp_clock(rows, data)), "stamps"
    taken = pl.when((pl.col("phase") == "decode") & (pl.col("gen_throughput") > 0)).then(
        n_steps
        * pl.col("running_req")
        * pl.col("accept_len").fill_null(1.0)
        / pl.col("gen_throughput")
    )
    steps = rows.select_seq("lines", taken=taken)
    usual = as_float(steps["taken"].median(), math.inf)
    if steps["taken"].drop_nulls().len() < MIN_INTERVALS or usual > MAX_INTERVAL_S:
        return rows.with_columns_seq(t=pl.int_range(pl.len()).cast(pl.Float64)), "none"
    # The throughput after an idle time divides by it, and says nothing of when it was.
    each = pl.col("taken").clip(upper_bound=GAP_SPACINGS * usual)
    steps = steps.with_columns_seq(taken=each * pl.col("lines").fill_null(1))
    # The lines from one decode line to the next share its interval evenly.
    block = pl.col("taken").is_not_null().cum_sum().shift(1, fill_value=0)
    steps = steps.select_seq(t=(pl.col("taken").sum() / pl.len()).over(block).cum_sum())
    return rows.with_columns_seq(t=steps["t"] - float(steps["t"][0])), "steps"


def _stamp_clock(rows: pl.DataFrame, data: SessionData) -> pl.Series:
    """Return `t` from the stamps.

    A clock that was set back by minutes goes on from where it was; jitter of seconds between
    processes is flattened.
    """
    stamps = rows["time"]
    if stamps.null_count():
        stamps = stamps.fill_null(strategy="forward").fill_null(strategy="backward")
    origin = data.session.start or stamps.min()
    seconds = pl.DataFrame(
        {"ms": (stamps - pl.Series([origin], dtype=pl.Datetime("ms"))).dt.total_milliseconds()}
    )
    flat = pl.col("ms").cum_max()
    set_back = seconds["ms"].diff() < -120_000
    if set_back.any():
        flat = flat.over(set_back.fill_null(False).cum_sum())
    t = seconds.select_seq(ms=flat).select_seq(
        t=pl.col("ms").diff().clip(0, None).fill_null(pl.col("ms").first()).cum_sum() / 1000.0
    )
    if bool((t["t"] % 1 == 0).all()):
        seconds = t["t"].rle().struct.unnest().with_columns_seq(line=pl.int_ranges("len"))
        t = seconds.explode("line").select_seq(
            t=pl.col("value") + (pl.col("line") + 0.5) / pl.col("len")
        )
    return t["t"]


def _with_states(lines: pl.DataFrame, data: SessionData, chunk: int | None) -> pl.DataFrame:
    """Add `row`, `spacing_s`, the phase's flags, `cut`, `continued`, `own_token`, `running`."""
    page = data.session.config.arg("page_size")
    slack = page if isinstance(page, int) and page > 1 else 1
    prefill = pl.col("phase") == "prefill"
    single = pl.col("lines").fill_null(1) == 1
    cut = (
        (prefill & single & (pl.col("new_token") > chunk - slack)).fill_null(False)
        if chunk
        else pl.lit(False)
    )
    lines = lines.with_columns_seq(
        row=pl.int_range(pl.len()),
        spacing_s=pl.coalesce("quiet_s", pl.col("t").diff()),
        lines=pl.col("lines").fill_null(1),
        decode=pl.col("phase") == "decode",
        prefill=prefill,
        cut=cut,
    )
    previous_cut = pl.when("prefill").then("cut").forward_fill().shift(1).fill_null(False)
    started = pl.when(single).then(pl.col("new_seq")).fill_null(0)
    joined = pl.col("running_req") + started - pl.col("cut").cast(pl.Int64)
    return lines.with_columns_seq(
        continued=pl.col("prefill") & previous_cut,
        own_token=own_token(data),
        running=pl.when("prefill").then(joined.clip(0, None)).otherwise("running_req"),
    )


def _gaps(lines: pl.DataFrame) -> list[Gap]:
    """Return the silences of a rank; a shorter one counts if it was idle for certain."""
    if not (lines["spacing_s"] > GAP_S).any():
        return []
    usual = as_float(lines["spacing_s"].median(), 0.0)
    limit = max(GAP_S, min(GAP_SPACINGS * usual, LONG_GAP_S))
    waiting = pl.sum_horizontal(
        pl.col("prealloc_req", "transfer_req", "retracted_req").fill_null(0)
    )
    silent = lines.with_columns_seq(
        t_before=pl.col("t").shift(1),
        running_before=pl.col("running").shift(1),
        queue_before=pl.col("queue_req").shift(1).fill_null(0),
        waiting_before=waiting.shift(1),
    ).filter(
        pl.col("spacing_s") > GAP_S,
        # Of a grid, only where the line before the silence was kept, too.
        pl.col("t") - pl.col("t_before") < pl.col("spacing_s") + _STAMP_S,
    )
    starts_empty = pl.col("prefill") & (pl.col("running_req") == 0) & ~pl.col("continued")
    nothing_left = (pl.col("running_before") == 0) & (pl.col("waiting_before") == 0)
    silent = silent.with_columns_seq(
        idle=(pl.col("queue_before") == 0) & (starts_empty | nothing_left).fill_null(False)
    ).filter((pl.col("spacing_s") > limit) | pl.col("idle"))
    return [
        Gap(*values)
        for values in silent.select_seq(
            pl.col("row") - 1,
            "t_before",
            "t",
            "idle",
            busy=(pl.col("running_before").fill_null(0) > 0) | (pl.col("queue_before") > 0),
        ).iter_rows()
    ]


def _finite(name: str) -> pl.Expr:
    """Return a column without what damaged numbers made infinite."""
    return pl.when(pl.col(name).is_finite()).then(name)


def _with_intervals(
    lines: pl.DataFrame,
    lost: pl.DataFrame,
    n_steps: int,
    chunk: int | None,
    gaps: Sequence[Gap],
    clock: Clock,
) -> pl.DataFrame:
    """Add what a decode line says about the time since the decode line before it.

    Completions are exact: running before + requests started - retracted - running now.
    """
    after_gap = pl.col("row").is_in([gap.before + 1 for gap in gaps])
    token = pl.col("own_token")
    merged = pl.col("lines") > 1
    # A row that stands for several prefill batches: full chunks go on with one prompt each.
    full = (
        (pl.col("new_token") >= 0.9 * chunk * pl.col("lines")).fill_null(False)
        if chunk
        else pl.lit(False)
    )
    gone_on = (
        pl.when(merged)
        .then(pl.col("lines") * full.cast(pl.Int32))
        .otherwise(pl.col("continued").cast(pl.Int32))
    )
    lines = lines.with_columns_seq(
        started=pl.when("prefill").then((pl.col("new_seq") - gone_on).clip(0, None))
    )
    totals = lines.with_columns_seq(
        _lost=_retracted_before(lines, lost),
        _gap=after_gap.cum_sum(),
        _prefills=pl.when("prefill").then("lines").otherwise(0).cum_sum(),
        _new=pl.col("new_token").fill_null(0).cum_sum(),
        _started=pl.col("started").fill_null(0).cum_sum(),
        _empty=(pl.col("prefill") & (pl.col("running_req") == 0)).fill_null(False).cum_sum(),
    )
    if as_float(lines["lines"].max(), 1.0) > 1:
        totals = _spread(totals)
    decode = totals.filter(pl.col("decode") & (pl.col("lines") > 0)).with_columns_seq(
        r_mean=pl.when(merged)
        .then("running_req")
        .otherwise((pl.col("running_req") + pl.col("running_req").shift(1)) / 2),
        t_mean=pl.when(merged).then(token).otherwise((token + token.shift(1)) / 2),
        stamp_dt_s=pl.col("t").diff(),
        n_prefill=pl.col("_prefills").diff(),
        d_new_token=pl.col("_new").diff(),
        d_new_seq=pl.col("_started").diff(),
        d_lost=pl.col("_lost").diff(),
        after_gap=pl.col("_gap").diff().fill_null(0) > 0,
        emptied=pl.col("_empty").diff().fill_null(0) > 0,
        first=pl.int_range(pl.len()) == 0,
        last_prefill=pl.coalesce(
            "last_prefill", pl.when(~merged).then(pl.col("_prefills").diff())
        ),
        last_new_token=pl.coalesce("last_new_token", pl.when(~merged).then(pl.col("_new").diff())),
        r_change=(
            (pl.col("running_req") - pl.col("running_req").shift(1)).abs()
            / pl.max_horizontal("running_req", pl.col("running_req").shift(1))
        ),
    )
    decode = decode.with_columns_seq(
        d_tokens=n_steps
        * pl.col("lines")
        * pl.col("r_mean")
        * pl.col("accept_len").fill_null(1.0),
        completed=(
            pl.col("running_req").shift(1)
            + pl.col("d_new_seq")
            - pl.col("d_lost")
            - pl.col("running_req")
        ).clip(0, None),
    )
    decode = (
        decode.with_columns_seq(d_tokens=_finite("d_tokens"))
        .with_columns_seq(
            dt_s=pl.when(pl.col("gen_throughput") > 0).then(
                pl.col("d_tokens") / pl.col("lines") / pl.col("gen_throughput")
            )
        )
        .with_columns_seq(dt_s=_finite("dt_s"))
    )
    if clock == "stamps":
        decode = _by_stamps(decode)
    lines = lines.drop("last_prefill", "last_new_token")
    found = lines.select_seq("row").join(
        decode.select_seq("row", *_INTERVAL_COLUMNS), on="row", how="left", maintain_order="left"
    )
    return lines.hstack(found.drop("row"))


def _by_stamps(decode: pl.DataFrame) -> pl.DataFrame:
    """Take the intervals from the stamps, and the batches from them, where both ends tell little.

    The batches at the ends of an interval are not its mean where as many requests come and go
    within it: with answers of 40 tokens all of a batch may leave in 40 steps. Stamps tell the
    time to a second, and throughput x time what was decoded. Of a log in which lines are missing
    nothing is changed: what its lines tell of is far from the time that passed.
    """
    single = (pl.col("lines") == 1) & ~pl.col("after_gap") & (pl.col("stamp_dt_s") > 0)
    stamped, dt = pl.col("stamp_dt_s"), pl.col("dt_s")
    known = single & dt.is_not_null()
    odd = (stamped - dt).abs() > _ODD_S + _ODD_SHARE * stamped
    sums = decode.filter(known).select_seq(
        odd.mean().alias("odd"), dt.sum(), stamped.sum(), pl.col("d_new_seq", "r_mean").sum()
    )
    share, told, passed, started, running = (as_float(value, 0.0) for value in sums.row(0))
    if share <= _ODD_LINES or started < _TURNOVER * running or not 0.5 < told / passed < 2.0:
        return decode
    factor = pl.when(known & (dt / stamped).is_between(0.1, 10.0)).then(stamped / dt)
    return decode.with_columns_seq(
        pl.col("dt_s", "r_mean", "t_mean", "d_tokens").cast(pl.Float64) * factor.fill_null(1.0)
    )


def _side_by_side(data: SessionData, found: list[Timeline]) -> list[Timeline]:
    """Add to each rank's decode lines what the others prefilled in the meantime.

    Ranks under DP attention step together, so the prefill of one is time in which none decodes
    any faster. Replicas (a DP size without DP attention) do not wait for each other.
    """
    together = len(found) > 1 and data.session.config.arg("enable_dp_attention") is not False
    if not together:
        zeros = [pl.lit(0).alias(name) for name in _BESIDE]
        return [replace(one, lines=one.lines.with_columns_seq(zeros)) for one in found]
    prefills = [_prefills_of(one) for one in found]
    every = _prefilled(pl.concat(prefills).sort("t"))
    out: list[Timeline] = []
    for one, of_one in zip(found, prefills, strict=True):
        own, lines = _prefilled(of_one), one.lines
        ends = [sums["t"].search_sorted(lines["t"], "right") for sums in (every, own)]
        counts: dict[str, pl.Series] = {}
        for since, before in (("", "stamp_dt_s"), ("last_", "dt_s")):
            start = (lines["t"] - lines[before]).fill_null(0.0)
            starts = [sums["t"].search_sorted(start, "right") for sums in (every, own)]
            for name in ("prefill", "new_token"):
                of_all, of_own = (
                    sums[name].gather(end) - sums[name].gather(begin)
                    for sums, end, begin in zip((every, own), ends, starts, strict=True)
                )
                counts[f"{since}beside_{name}"] = (of_all - of_own).set(
                    lines[before].is_null(), None
                )
        out.append(replace(one, lines=lines.with_columns_seq(**counts)))
    return out


#: A row of several prefill batches is spread in so many parts at most.
_PARTS = 16

_BESIDE = (
    "beside_prefill",
    "beside_new_token",
    "last_beside_prefill",
    "last_beside_new_token",
)


def _prefills_of(one: Timeline) -> pl.DataFrame:
    """Return {t, prefill, new_token} of a rank's prefill batches.

    A row that stands for several is spread over the time since the row before: all of them at
    its end would fall into one interval of another rank, or into none.
    """
    batch = pl.col("prefill") & (pl.col("lines") > 0)
    prefills = one.lines.select_seq(
        pl.col("t").filter(batch),
        prefill=pl.col("lines").filter(batch).cast(pl.Float64),
        new_token=pl.col("new_token").filter(batch).fill_null(0).cast(pl.Float64),
    )
    if not one.merged:
        return prefills
    since = pl.col("t").diff()
    usual = since.filter(pl.col("prefill") > 1).median()
    parts = pl.col("prefill").clip(1, _PARTS).cast(pl.Int64)
    return (
        prefills.with_columns_seq(
            since=pl.min_horizontal(since, usual), parts=parts, part=pl.int_ranges(parts)
        )
        .explode("part")
        .select_seq(
            pl.col("t") - pl.col("since") * (1 - (pl.col("part") + 1) / pl.col("parts")),
            pl.col("prefill", "new_token") / pl.col("parts"),
        )
    )


def _prefilled(prefills: pl.DataFrame) -> pl.DataFrame:
    """Return the sums up to each prefill, with a row of zeros for the time before the first.

    `t` is shifted by one row, so that the place of a time in it is the row of its sums.
    """
    sums = prefills.select_seq(pl.col("prefill", "new_token").cum_sum())
    zero = pl.DataFrame({"prefill": [0.0], "new_token": [0.0]})
    return pl.concat([zero, sums]).with_columns_seq(t=prefills["t"].extend_constant(math.inf, 1))


def _spread(totals: pl.DataFrame) -> pl.DataFrame:
    """Spread what a row says of several prefill batches over the time since the row before.

    Its sums would else fall into the decode interval that holds its last batch.
    """
    stands = pl.col("prefill") & (pl.col("lines") > 0)
    return totals.with_columns_seq(
        pl.when(stands | (pl.col("row") == 0))
        .then(pl.col(name).cast(pl.Float64))
        .interpolate_by("t")
        .forward_fill()
        .alias(name)
        for name in ("_prefills", "_new", "_started")
    )


_INTERVAL_COLUMNS = (
    "dt_s",
    "stamp_dt_s",
    "r_mean",
    "t_mean",
    "d_tokens",
    "n_prefill",
    "d_new_token",
    "d_new_seq",
    "d_lost",
    "completed",
    "last_prefill",
    "last_new_token",
    "r_change",
    "after_gap",
    "emptied",
    "first",
)


def _retracted_before(lines: pl.DataFrame, lost: pl.DataFrame) -> pl.Series:
    """Return the requests retracted up to each line, counted from the session's start."""
    if not lost.height:
        return pl.Series([0]).new_from_index(0, lines.height)
    sums = lost.sort("row").select_seq(
        "row", total=pl.col("num_retracted_reqs").fill_null(1).cast(pl.Int64).cum_sum()
    )
    before = sums["row"].search_sorted(lines["row"])
    return pl.concat([pl.Series([0]), sums["total"]]).gather(before)


def places(lines: pl.DataFrame, rows: pl.DataFrame) -> pl.Series:
    """Return numbers that are in the order of `lines` for rows with source and line_no.

    Parts of a rotated set follow each other, and a log may stand newest first. Null for rows of
    other sources.
    """
    line_no = pl.col("line_no")
    parts = (
        lines.group_by("source", maintain_order=True)
        .agg(way=pl.when(line_no.last() < line_no.first()).then(-1).otherwise(1))
        .with_row_index("part")
    )
    found = rows.select_seq("source", "line_no").join(
        parts, on="source", how="left", maintain_order="left"
    )
    return found.select_seq(
        place=pl.col("part").cast(pl.Int64) * _PART_LINES + pl.col("way") * line_no
    )["place"]


def row_before(lines: pl.DataFrame, rows: pl.DataFrame) -> pl.Series:
    """Return the `row` of the line before each of some rows; -1 where there is none."""
    if not rows.height:
        return pl.Series(dtype=pl.Int64)
    at = places(lines, rows).fill_null(-_PART_LINES)
    return places(lines, lines).search_sorted(at, "right").cast(pl.Int64) - 1


#: More lines than a part has.
_PART_LINES = 1 << 40
