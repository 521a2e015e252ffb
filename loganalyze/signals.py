"""What every rule reads: each DP rank's lines, and one time grid.

A rule that worked on raw lines would weigh a second with ten lines ten times as much as one
with a single line, and would bridge silences. So the lines of each rank are laid once on a
grid of one-second cells (wider for very long sessions: all ranks together have at most
`MAX_CELLS`). A state is held from line to line and is null inside a gap; counts are sums;
what a decode line says about the time since the line before it (throughput, prefill duty,
step residual) fills the cells back to that line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import polars as pl

from loganalyze import mixed, timeline
from loganalyze.capacity import memory, pool, steps
from loganalyze.model import Capacity, Session, SessionData, StepModel
from loganalyze.timeline import Clock, Gap, Timeline, as_float

#: Cells of all ranks of one session together: bounds memory (41 hours of one rank at 1 s).
MAX_CELLS = 150_000

#: Decode steps in which the admission estimate new_token_ratio falls to its floor.
RATIO_DECAY_STEPS = 600

#: A decode-less stretch this long, with prefill lines at least this often per second, is
#: prefill work that the decode lines around it cannot show.
_STRETCH_S = 8.0
_STRETCH_PREFILLS_PER_S = 0.15
#: Less than the slowest prefill of the longest prompt: the time went to something else.
_STRETCH_TOKENS_PER_S = 100.0
_STRETCH_DUTY = 0.8

#: Without a step model: a prefill batch of so many times the running requests in tokens takes no
#: less time than a decode step.
_LONG_BATCH = 16

#: Time over which the size of a request that comes is taken.
_PROMPT_S = 120.0

#: How far ahead the growth of the running requests is looked for, and how often.
_AHEAD_S, _AHEAD_EVERY_S = 120.0, 2.0
#: So many of those times are looked at in one query: each takes a column.
_AT_ONCE = 12

#: Unless the step model explains the interval within this (log of measured over modelled time).
_STRETCH_RESIDUAL = 0.4


T = TypeVar("T")

#: A column of the grid, an expression over it, or a series of its height.
Values = str | pl.Expr | pl.Series


@dataclass(frozen=True)
class Rank:
    """One DP rank of a session: its timeline, what the models add, and its grid.

    Attributes:
        timeline: see timeline.py; `lines` here has more columns.
        kv_tokens: pool size, printed or inferred; None if neither.
        cap: running cap of the start-up line; None if not printed.
        model: fitted step model; None if it could not be fitted.
        told: whether its lines are one server's, and all of them.
        step_s: width of a cell in seconds.
        lines: `timeline.lines` plus `ratio` (`_with_ratio`) and the columns of `_with_model`.
        grid: one row per cell; see `_grid`.
    """

    timeline: Timeline
    kv_tokens: int | None
    cap: int | None
    model: StepModel | None
    told: mixed.Told
    step_s: float
    lines: pl.DataFrame
    grid: pl.DataFrame

    @property
    def label(self) -> str | None:
        """Rank words as printed."""
        return self.timeline.label

    @property
    def clock(self) -> Clock:
        """What times count."""
        return self.timeline.clock

    @property
    def gaps(self) -> Sequence[Gap]:
        """Silences."""
        return self.timeline.gaps

    @property
    def span_s(self) -> float:
        """Seconds from the rank's first line to its last."""
        return self.timeline.span_s

    def cells(self, seconds: float) -> int:
        """Return a length in cells, at least one."""
        return max(1, round(seconds / self.step_s))

    def select(self, expr: pl.Expr) -> pl.Series:
        """Evaluate an expression over the grid."""
        return self.grid.select_seq(expr.alias("x"))["x"]

    @cached_property
    def places(self) -> pl.Series:
        """Numbers that are in the order of the lines; see `timeline.places`."""
        return timeline.places(self.lines, self.lines)

    @cached_property
    def cell_of(self) -> pl.Series:
        """The cell of each line."""
        return (self.lines["t"] / self.step_s).cast(pl.Int64)

    @cached_property
    def never(self) -> pl.Series:
        """False in each cell."""
        return pl.Series([False]).new_from_index(0, self.grid.height)

    @cached_property
    def waits(self) -> bool:
        """Whether a line of the rank shows a queue."""
        return bool((self.grid["queue"] > 0).any())

    @cached_property
    def lost(self) -> float:
        """Requests of the rank that were retracted."""
        return as_float(self.grid["retracted"].sum(), 0.0)

    def mean(self, value: Values, seconds: float) -> pl.Series:
        """Return the mean over the window centred on each cell; null cells do not count."""
        return self._floats(value).rolling_mean(self.cells(seconds), min_samples=1, center=True)

    def past_max(self, value: Values, seconds: float) -> pl.Series:
        """Return the maximum over the window that ends with each cell."""
        return self._floats(value).rolling_max(self.cells(seconds), min_samples=1)

    def past_sum(self, value: Values, seconds: float) -> pl.Series:
        """Return the sum over the window that ends with each cell; null counts as 0."""
        return self._floats(value).fill_null(0).rolling_sum(self.cells(seconds), min_samples=1)

    def holds(self, condition: Values, share: float, seconds: float) -> pl.Series:
        """Return where a condition holds for at least `share` of the window around the cell.

        Cells in a gap are false and do not count; a null condition does not hold.
        """
        held = self._floats(condition) > 0
        if not held.any():  # as in most logs of most conditions: no window needs a look
            return self.never
        live = ~self.grid["gap"]
        size = self.cells(seconds)
        held_sum = (
            (held.fill_null(False) & live)
            .cast(pl.Float64)
            .rolling_sum(size, min_samples=1, center=True)
        )
        live_sum = live.cast(pl.Float64).rolling_sum(size, min_samples=1, center=True)
        return (held_sum >= share * live_sum - 1e-9) & (held_sum > 0) & live

    @cached_property
    def filled(self) -> pl.Series:
        """Usage that the requests running in a cell and the next one come to, at least.

        That one brings its prompt and decodes beside them, up to a usual answer; without prefill
        lines, which tell what comes, it is as large as those that run. Where a request is small
        against the pool this is hardly more than the usage they grow to; where a few fill it,
        usage is seldom near 1, since what is free is too little for one more. Null in gaps.
        """
        usage = pl.lit(None, pl.Float64)
        if not (self.grid["n_prefill"] > 0).any():
            usage = pl.col("full_usage") * (1 + 1 / pl.col("running"))
        elif self.kv_tokens:
            decoded, completed = self.grid.select_seq(pl.col("decoded", "completed").sum()).row(0)
            tokens = self._most_ahead(decoded / completed if completed else math.inf)
            usage = (pl.lit(tokens) + pl.col("prompt").fill_null(0)) / self.kv_tokens
        most = pl.max_horizontal("full_usage", pl.when(pl.col("running") > 0).then(usage))
        return self.select(pl.when(pl.col("full_usage").is_not_null()).then(most))

    def _most_ahead(self, answer: float) -> pl.Series:
        """Return the KV tokens that the requests running in a cell are seen to come to hold.

        What the pool holds at a time ahead, less the prompts that came until then and all that
        their requests can have decoded, and with what one more request decodes until then, up to
        a whole answer; the most over `_AHEAD_S`. Of those that came and went too much is taken
        off, so it may be too little, but not too much.
        """
        per_req = pl.when(pl.col("running") > 0).then(pl.col("decoded") / pl.col("running"))
        sums = self.grid.select_seq(
            token="own_token",
            came=(pl.col("new_token") + pl.col("cached_token")).cum_sum(),
            started="started",
            requests=pl.col("started").cum_sum(),
            steps=per_req.fill_null(0).cum_sum(),
        ).with_columns_seq(joined=(pl.col("started") * pl.col("steps")).cum_sum())
        # A request that starts in between has decoded (steps then - steps at its start) tokens:
        # what there is at a time of all from the log's start on, and what is too much of that.
        whole = pl.col("token") - pl.col("came") + pl.col("joined")
        sums = sums.with_columns_seq(
            whole=whole - pl.col("requests") * pl.col("steps"),
            own=pl.col("came") - pl.col("joined"),
        )
        most, every = sums["token"], self.cells(_AHEAD_EVERY_S)
        times = range(every, self.cells(_AHEAD_S) + 1, every)
        for some in (times[k : k + _AT_ONCE] for k in range(0, len(times), _AT_ONCE)):
            then = [pl.col("steps").shift(-n) for n in some]
            later = [
                pl.col("whole").shift(-n)
                + pl.col("requests") * steps
                + pl.col("own")
                + (steps - pl.col("steps")).clip(0, answer)
                for n, steps in zip(some, then, strict=True)
            ]
            most = sums.select_seq(x=pl.max_horizontal(most, *later))["x"]
        return sums.select_seq(most=pl.when(pl.col("token").is_not_null()).then(most))["most"]

    def _floats(self, value: Values) -> pl.Series:
        if isinstance(value, str):
            return self.grid[value].cast(pl.Float64)
        series = self.select(value) if isinstance(value, pl.Expr) else value
        return series.cast(pl.Float64)


@dataclass(frozen=True)
class Signals:
    """The signals of one session."""

    data: SessionData
    ranks: tuple[Rank, ...]
    capacity: Capacity
    _known: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)

    def once(self, key: Hashable, work_out: Callable[[], T]) -> T:
        """Return what several rules need of this session, worked out for the first of them.

        Args:
            key: names it, with all that it depends on beside the session.
            work_out: called the first time.
        """
        if key not in self._known:
            self._known[key] = work_out()
        found: T = self._known[key]
        return found

    @property
    def session(self) -> Session:
        """The session."""
        return self.data.session

    @cached_property
    def span_s(self) -> float:
        """Seconds from the first to the last statistics line of any rank."""
        return max((rank.span_s for rank in self.ranks), default=0.0)

    @cached_property
    def servers(self) -> int:
        """About how many servers printed these lines; more than one cannot be told apart."""
        return max((rank.told.servers for rank in self.ranks), default=1)

    @cached_property
    def n_lines(self) -> int:
        """Printed statistics lines, duplicates left out."""
        return sum(int(rank.lines["lines"].sum()) for rank in self.ranks)


def build(data: SessionData) -> Signals:
    """Compute the signals of a session."""
    measured = data.session.capacity
    capacity = pool.measure(data) if measured == Capacity() else measured
    found = timeline.of(data)
    longest = max((float(one.lines["t"][-1]) for one in found), default=0.0)
    step_s = float(max(1, math.ceil(longest * len(found) / MAX_CELLS)))
    ranks = tuple(_rank(data, one, step_s, capacity) for one in found)
    return Signals(data, ranks, capacity)


def _rank(data: SessionData, one: Timeline, step_s: float, capacity: Capacity) -> Rank:
    model = steps.fit_timeline(one, capacity.bytes_per_token)
    lines = _with_ratio(one.lines, data, one)
    lines = _with_admitted(lines, one.chunk)
    lines = _with_model(lines, model, one.interval, _mixes(lines, data))
    return Rank(
        timeline=one,
        kv_tokens=capacity.kv_tokens,
        cap=data.session.config.max_running_req,
        model=model,
        told=mixed.told(data, one),
        step_s=step_s,
        lines=lines,
        grid=_grid(lines, data, one, step_s, capacity.kv_tokens),
    )


# -- columns of lines ---------------------------------------------------------------------


def _with_ratio(lines: pl.DataFrame, data: SessionData, one: Timeline) -> pl.DataFrame:
    """Add `ratio`, the reconstructed new_token_ratio after each line.

    It starts at min(0.7 c, 1) when the server starts and after every idle moment, falls
    linearly to 0.14 of that over 600 decode steps, and a retraction prints its new value.
    A log that begins in mid-life starts at the floor.

    Source:
        SGLang scheduler; c is schedule_conservativeness as printed (after DP attention's x0.3).
    """
    init, floor = memory.token_ratio(memory.printed_conservativeness(data.session.config))
    decay = (init - floor) / RATIO_DECAY_STEPS
    # A prefill line without running requests, when nothing waited before: the server was idle.
    emptied = (
        pl.col("prefill")
        & (pl.col("running_req") == 0)
        & (pl.col("queue_req").shift(1).fill_null(0) == 0)
        & ~pl.col("continued")
    )
    idle = pl.col("row").is_in([gap.before + 1 for gap in one.gaps if gap.idle])
    points = lines.select_seq(
        "source",
        "line_no",
        "row",
        at=pl.when("decode").then("lines").otherwise(0).cum_sum().cast(pl.Int64) * one.interval,
        value=pl.when((idle | emptied).fill_null(False))
        .then(init)
        .when(pl.col("row") == 0)
        .then(init if data.startup.height else floor),
    )
    points = points.with_columns_seq(line=True)
    if one.lost.height:
        lost = one.lost.select_seq("source", "line_no", "row", value="new_token_ratio").join(
            points.select_seq("row", "at"), on="row", how="left", maintain_order="left"
        )
        extra = lost.with_columns_seq(pl.col("at").fill_null(0), line=False)
        points = pl.concat([points, extra.select_seq(points.columns)]).sort(
            "row", maintain_order=True
        )
    value = pl.col("value")
    ratio = (
        points.with_columns_seq(
            since=pl.when(value.is_not_null()).then("at").forward_fill().fill_null(0),
            value=value.forward_fill().fill_null(floor),
        )
        .filter("line")
        .select_seq(
            ratio=pl.max_horizontal(value - decay * (pl.col("at") - pl.col("since")), floor)
        )
    )
    return lines.with_columns_seq(ratio["ratio"])


def _with_admitted(lines: pl.DataFrame, chunk: int | None) -> pl.DataFrame:
    """Add `admitted`: requests of a prefill batch that its token budget did not end; and `short`.

    0 on a prefill line whose batch is as large as the budget lets it be, null on other lines.
    A batch with some ended because no further request fitted, or because none waited: it is
    `short` if some still wait after it. Where the budget is not printed or chunks are off, it is
    no less than the largest batch: one is short that a usual prompt more would not have made
    larger than that. A full batch of one prompt that goes on tells nothing of the next prompt:
    `short` is null there.
    """
    mean_tokens = pl.col("new_token") / pl.col("lines")
    started = pl.col("new_seq") / pl.col("lines")
    batch = pl.col("prefill") & (pl.col("lines") > 0)
    if chunk:
        admitted = pl.when(mean_tokens < 0.9 * chunk).then(started).otherwise(0.0)
        short = pl.col("admitted") > 0
    else:
        admitted = started
        usual = pl.col("new_token").filter(batch).sum() / pl.col("new_seq").filter(batch).sum()
        short = mean_tokens + usual < mean_tokens.filter(batch).max()
    return lines.with_columns_seq(admitted=pl.when(batch).then(admitted)).with_columns_seq(
        short=pl.when(batch & ~(pl.col("cut") & (pl.col("new_seq") == 1))).then(
            short & (pl.col("queue_req") > 0)
        )
    )


def _mixes(lines: pl.DataFrame, data: SessionData) -> bool:
    """Whether prefill batches decode as well, so that no decode line does not mean no decoding."""
    return bool(lines["mixed"].any()) or data.session.config.arg("enable_mixed_chunk") is True


def _with_model(
    lines: pl.DataFrame, model: StepModel | None, n_steps: int, mixed: bool
) -> pl.DataFrame:
    """Add what the step model says of each decode interval.

    Columns: `model_step_s` (modelled seconds of a decode step at this R and T), `residual`
    (log of measured over modelled time), `duty` (share of the interval spent on prefill).
    """
    if model is None:
        null = pl.lit(None, pl.Float64)
        duty = null if mixed else _passes_of_prefill(n_steps)
        lines = lines.with_columns_seq(model_step_s=null, residual=null, duty=duty)
    else:
        step = (
            model.t0_s + model.a_s * pl.col("r_mean") + model.b_s * pl.col("t_mean").fill_null(0)
        )
        last = model.p0_s * (
            pl.col("last_prefill") + pl.col("last_beside_prefill")
        ) + model.p1_s * (pl.col("last_new_token") + pl.col("last_beside_new_token"))
        n_prefill = pl.col("n_prefill") + pl.col("beside_prefill")
        steps_taken = n_steps * pl.col("lines")
        # Of these steps some were taken beside another rank's prefill, and are part of it.
        ridden = pl.min_horizontal("beside_prefill", steps_taken)
        lines = lines.with_columns_seq(
            model_step_s=step,
            prefill_s=model.p0_s * n_prefill
            + model.p1_s * (pl.col("d_new_token") + pl.col("beside_new_token"))
            + ridden * step,
            took_s=pl.when(pl.col("lines") > 1).then("stamp_dt_s").otherwise("dt_s"),
            decode_s=(steps_taken - ridden) * step,
        ).with_columns_seq(
            residual=pl.when(pl.col("dt_s") > 0).then(
                (pl.col("dt_s") / (n_steps * pl.col("model_step_s") + last)).log()
            ),
            # Where all steps were faster than the model's, prefill was as well.
            duty=pl.when(n_prefill == 0)
            .then(0.0)
            .when(pl.lit(model.p0_s + model.p1_s > 0))
            .then(
                pl.col("prefill_s")
                / pl.max_horizontal("took_s", pl.col("prefill_s") + pl.col("decode_s"))
            )
            .otherwise(
                1 - n_steps * pl.col("lines") * pl.col("model_step_s") / pl.col("stamp_dt_s")
            )
            .clip(0.0, 1.0),
        )
    usual = lines["stamp_dt_s"].median()
    stretch = math.inf if mixed else max(_STRETCH_S, 3 * as_float(usual, 0.0))
    pure = (
        (pl.col("stamp_dt_s") >= stretch)
        & (pl.col("n_prefill") > _STRETCH_PREFILLS_PER_S * pl.col("stamp_dt_s"))
        & (pl.col("d_new_token") > _STRETCH_TOKENS_PER_S * pl.col("stamp_dt_s"))
        & ~pl.col("after_gap")
        & (pl.col("residual").fill_null(math.inf) > _STRETCH_RESIDUAL)
    )
    return lines.with_columns_seq(
        duty=pl.when(pure)
        .then(pl.max_horizontal(pl.col("duty").fill_null(0.0), _STRETCH_DUTY))
        .otherwise("duty")
    )


def _passes_of_prefill(n_steps: int) -> pl.Expr:
    """Return a lower bound of the duty that needs no step model; null where it tells nothing.

    A prefill batch of many more tokens than there are running requests reads the same weights
    as a decode step and computes more: it takes no less time. So more prefill batches than
    decode steps take most of the time.
    """
    passes = pl.col("n_prefill") / (pl.col("n_prefill") + n_steps * pl.col("lines"))
    long = pl.col("d_new_token") > _LONG_BATCH * pl.col("n_prefill") * pl.col("r_mean")
    return pl.when(long & (passes > 0.5)).then(passes)


# -- the grid -----------------------------------------------------------------------------

#: States, held from line to line: grid column -> expression over lines.
_STATES: dict[str, pl.Expr] = {
    "usage": pl.col("kv_usage"),
    "full_usage": pl.coalesce("full_token_usage", "token_usage", "gpu_token_usage"),
    "swa_usage": pl.col("swa_token_usage"),
    "mamba_usage": pl.col("mamba_usage"),
    "prealloc_usage": pl.col("pre_allocated_usage"),
    "queue": pl.col("queue_req"),
    "queued": pl.col("queue_req") > 0,
    "running": pl.col("running"),
    "token": pl.coalesce("token", "full_token", "gpu_token"),
    "own_token": pl.col("own_token"),
    "ratio": pl.col("ratio"),
    "graph_off": pl.when("decode").then(~pl.col("cuda_graph")),
    "accept": pl.col("accept_len"),
    "prealloc": pl.col("prealloc_req"),
    "images": pl.col("waiting_image_req"),
    "transfer": pl.coalesce("transfer_req", "inflight_req", "transferring_req"),
    "bootstrap": pl.coalesce("bootstrap_req", "unbootstrapped_req"),
    "pending": pl.col("pending_token"),
    "admitted": pl.col("admitted"),
    "short": pl.col("short"),
}

#: What a decode line says about the time back to the decode line before it.
_INTERVALS: dict[str, pl.Expr] = {
    "rate": pl.col("gen_throughput"),
    "duty": pl.col("duty"),
    "residual": pl.col("residual"),
    "model_step_s": pl.col("model_step_s"),
}

#: Sums over a cell.
_COUNTS: dict[str, pl.Expr] = {
    "n_lines": pl.col("lines").sum(),
    "n_decode": pl.col("lines").filter(pl.col("decode")).sum(),
    "n_prefill": pl.col("lines").filter(pl.col("prefill")).sum(),
    "new_seq": pl.col("new_seq").sum(),
    "started": pl.col("started").sum(),
    "new_token": pl.col("new_token").sum(),
    "cached_token": pl.col("cached_token").sum(),
    "decoded": pl.col("d_tokens").sum(),
    "completed": pl.col("completed").sum(),
}


def _grid(
    lines: pl.DataFrame,
    data: SessionData,
    one: Timeline,
    step_s: float,
    kv_tokens: int | None,
) -> pl.DataFrame:
    """Lay the lines of a rank on its grid.

    Columns: `cell`; `t` (left edge, s); `gap`, `idle` (flags); the states of `_STATES`
    (`usage` is the fullest pool, `queued` the share of the cell with a queue, `running` and
    `token` as in timeline.py); `_INTERVALS`; `_COUNTS` (0 where no line fell); `retracted`
    (requests); `prompt` (tokens that a request brings, over `_PROMPT_S`); `free` (KV tokens),
    `need` (tokens that admission asks for, an upper bound where max_new_tokens is unknown),
    `starved` (free <= 1.35 need) and `charged` (the same with what the pass charged for the
    requests that it let in).
    """
    cell = (pl.col("t") / step_s).floor().cast(pl.Int64)
    printed = lines.group_by(cell.alias("cell"), maintain_order=True).agg(
        *(expr.cast(pl.Float64).mean().alias(name) for name, expr in _STATES.items()),
        *(_by_time(expr).alias(name) for name, expr in _INTERVALS.items()),
        *(expr.cast(pl.Float64).alias(name) for name, expr in _COUNTS.items()),
    )
    height = int(printed["cell"][-1]) + 1 if printed.height else 0
    silent, idle = _gap_masks(one.gaps, step_s, height)
    first = int(printed["cell"][0]) if printed.height else 0
    # The first decode line has none before it, from which it could tell what the time went to.
    unsaid = pl.col("duty").is_null() | (pl.col("n_decode").cum_sum() == 0)
    return (
        pl.DataFrame({"cell": pl.int_range(height, eager=True)})
        .join(printed, on="cell", how="left", maintain_order="left")
        .with_columns_seq(
            pl.col(*_STATES).forward_fill(),
            pl.col(*_INTERVALS).backward_fill(),
            pl.col(*_COUNTS).fill_null(0),
            retracted=_lost_by_cell(one, step_s, height),
            t=pl.col("cell") * step_s,
            gap=silent | (pl.int_range(pl.len()) < first),
            idle=idle,
        )
        .with_columns_seq(
            pl.when(~pl.col("gap")).then(pl.col(name)).alias(name)
            for name in (*_STATES, *_INTERVALS)
        )
        .with_columns_seq(
            prompt=_prompt(step_s),
            free=pl.lit(kv_tokens, pl.Float64) * (1 - pl.col("usage")),
            need=pl.col("running") * memory.CLIP * pl.col("ratio")
            + memory.CLIP
            + usual_prompt(lines),
        )
        .with_columns_seq(
            starved=pl.col("free") <= memory.NEED_MARGIN * pl.col("need"),
            # One pass charges each request that it lets in with all that it may decode, and
            # admission is not tried again until a request leaves.
            charged=pl.col("free")
            <= memory.NEED_MARGIN
            * (
                pl.col("need")
                + pl.col("admitted").fill_null(0) * memory.CLIP * (1 - pl.col("ratio"))
            ),
            duty=pl.when(~unsaid)
            .then("duty")
            .when(_only_prefill(step_s) & ~pl.lit(_mixes(lines, data)))
            .then(_STRETCH_DUTY),
        )
    )


def usual_prompt(lines: pl.DataFrame) -> float:
    """Return the prompt tokens that a rank computes for a request that it lets in, on average."""
    prompts = pl.col("new_token", "started").filter(pl.col("new_seq") > 0)
    new, started = (as_float(value, 0.0) for value in lines.select_seq(prompts.sum()).row(0))
    return new / max(1.0, started)


def _by_time(value: pl.Expr) -> pl.Expr:
    """Return the mean of what decode lines say of the time before them, by the time of each.

    A cell may hold the end of a long prefill and some quick intervals after it.
    """
    said = pl.col("decode") & value.is_not_null()
    time = pl.col("dt_s").fill_null(0.0)
    total = time.filter(said).sum()
    weighted = (value * time).filter(said).sum() / total
    return pl.when(total > 0).then(weighted).otherwise(value.filter(said).mean())


def _prompt(step_s: float) -> pl.Expr:
    """Return the tokens that a request brings to the pool: prefilled ones per started request."""
    size = max(1, round(_PROMPT_S / step_s))
    new, started = (
        pl.col(name).rolling_sum(size, min_samples=1, center=True)
        for name in ("new_token", "started")
    )
    return new / pl.when(started > 0).then(started)


def _only_prefill(step_s: float) -> pl.Expr:
    """Whether prefill batches follow each other with a queue and no decode line among them.

    A decode line says that 40 steps were taken: what the rest of the time went to is then for
    the step model to tell, and without one nobody knows.
    """
    size = max(1, round(15 / step_s))
    prefills, tokens, decodes = (
        pl.col(name).rolling_sum(size, min_samples=1, center=True) / (size * step_s)
        for name in ("n_prefill", "new_token", "n_decode")
    )
    busy = (prefills > _STRETCH_PREFILLS_PER_S) & (tokens > _STRETCH_TOKENS_PER_S)
    return busy & (decodes == 0) & (pl.col("queued") > 0) & ~pl.col("gap")


def _gap_masks(gaps: Sequence[Gap], step_s: float, height: int) -> tuple[pl.Series, pl.Series]:
    """Return where the grid lies in a gap, and where in an idle one."""
    edges = [(int(g.start_s / step_s) + 1, int(g.end_s / step_s), g.idle) for g in gaps]
    edges = [(first, end, idle) for first, end, idle in edges if end > first]
    if not edges:
        never = pl.Series([False]).new_from_index(0, height)
        return never, never
    steps = pl.DataFrame(
        {
            "cell": [e[0] for e in edges] + [e[1] for e in edges],
            "silent": [1] * len(edges) + [-1] * len(edges),
            "idle": [int(e[2]) for e in edges] + [-int(e[2]) for e in edges],
        },
        schema={"cell": pl.Int64, "silent": pl.Int64, "idle": pl.Int64},
    )
    masks = (
        pl.DataFrame({"cell": pl.int_range(height, eager=True)})
        .join(steps.group_by("cell").sum(), on="cell", how="left", maintain_order="left")
        .select_seq(pl.col("silent", "idle").fill_null(0).cum_sum() > 0)
    )
    return masks["silent"], masks["idle"]


def _lost_by_cell(one: Timeline, step_s: float, height: int) -> pl.Series:
    """Return the requests retracted in each cell, at the time of the line before."""
    out = pl.Series([0.0]).new_from_index(0, height)
    if not one.lost.height:
        return out
    t = one.lines["t"].gather(one.lost["row"].clip(0))
    by_cell = one.lost.group_by((t / step_s).floor().cast(pl.Int64).alias("cell")).agg(
        retracted=pl.col("num_retracted_reqs").fill_null(1).sum()
    )
    return out.scatter(by_cell["cell"], by_cell["retracted"])
