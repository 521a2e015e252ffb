"""The step model: seconds of a decode step from running requests and KV tokens.

    dt = n (t0 + a R + b T) + p0 (prefill batches) + p1 (new tokens)

over the interval between two decode lines, n decode steps long. t0 is weights and launches,
a the work per request, b KV bytes per token over bandwidth, p0 and p1 prefill. `dt` comes from
the printed throughput (n R accepted / throughput), so it is exact where stamps are not.

The fit is joint (prefill time sits in almost every interval of a busy server; leaving those
out would leave nothing), non-negative, relative (an interval twice as long may be off by
twice as much), and robust: Huber weights at 1.5 robust standard deviations, reweighted until
they settle. Sums of products come from Polars; the system of five unknowns is solved here.

Why a prior on b (2026-11): where prefill takes most of the time, or KV tokens hardly move, the
log cannot tell b from the rest of the step, and a free fit may give it all or nothing. Bytes
per token over a usual memory bandwidth says what b is about; with a wide margin it decides
only where the log does not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from weakref import WeakKeyDictionary

import polars as pl

from loganalyze import timeline
from loganalyze.model import SessionData, StepModel
from loganalyze.timeline import Timeline, as_float

#: Fewer clean intervals than this are not fitted; below ADVISED the note says so.
MIN_LINES = 12
ADVISED_LINES = 60

_HUBER_SD = 1.5
_FIRST_SPREAD = 0.02
_ROUNDS = 12

#: R and T must move, and not together, for a and b to be told apart.
_MIN_CV = 0.05
_MAX_CORRELATION = 0.95

#: Memory bandwidth of a data-centre GPU in use, bytes a second, and its relative margin.
_BANDWIDTH = 3.0e12
_BANDWIDTH_MARGIN = 0.35

#: The margin where KV tokens hardly moved: what little they did is rounding, so b is the prior.
_UNMOVED_MARGIN = 0.001

#: Relative standard error of b beyond which the log alone does not tell it.
_MAX_ERROR = 0.3

#: Standard error of a x R over the step beyond which the log does not tell a from t0.
_MAX_ERROR_OF_STEP = 0.1

#: Columns that are alike but for this share of their squares (1e-4 of a value: throughput is
#: printed with two decimals) are one column.
_SINGULAR = 1e-8
#: Of explanations that differ by less, the first is taken: the step before prefill.
_ROUNDING = 1e-9

#: What a fit reads of a decode line.
_USED = (
    "dt_s",
    "r_mean",
    "t_mean",
    "last_prefill",
    "last_new_token",
    "last_beside_prefill",
    "last_beside_new_token",
    "n_prefill",
    "beside_prefill",
    "stamp_dt_s",
    "lines",
    "cuda_graph",
)

_UNKNOWNS = ("t0", "a", "b", "p0", "p1")

#: Models that were fitted, by rank and prior: the session asks for them, and then each rank.
_FITTED: WeakKeyDictionary[Timeline, dict[float | None, StepModel | None]] = WeakKeyDictionary()


def fit(data: SessionData, bytes_per_token: float | None = None) -> StepModel | None:
    """Return the step model of the session's rank with most decode lines, or None.

    None means fewer than `MIN_LINES` clean intervals. `bytes_per_token` sets the prior on b.
    """
    return fit_all(timeline.of(data), bytes_per_token)


def fit_all(found: Sequence[Timeline], bytes_per_token: float | None = None) -> StepModel | None:
    """Return the step model of the rank with most clean intervals, or None."""
    models = [model for one in found if (model := fit_timeline(one, bytes_per_token))]
    return max(models, key=lambda model: model.n_lines, default=None)


def fit_timeline(one: Timeline, bytes_per_token: float | None = None) -> StepModel | None:
    """Return the step model of one rank, or None.

    The prefill of a rank that steps with this one lengthens the interval as its own does. A
    step that this rank decodes beside it takes no time of its own, which p0 absorbs.

    Args:
        one: the rank.
        bytes_per_token: KV bytes per token and GPU, for the prior on b; None for no prior.
    """
    fitted = _FITTED.setdefault(one, {})
    if bytes_per_token not in fitted:
        fitted[bytes_per_token] = _fit(one, bytes_per_token)
    return fitted[bytes_per_token]


def _fit(one: Timeline, bytes_per_token: float | None) -> StepModel | None:
    rows = _clean(one)
    if rows.height < MIN_LINES:
        return None
    n = one.interval
    rows = rows.select_seq(
        dt=pl.col("dt_s"),
        t0=pl.lit(float(n)),
        a=n * pl.col("r_mean"),
        b=n * pl.col("t_mean").fill_null(0.0).cast(pl.Float64),
        p0=(pl.col("last_prefill") + pl.col("last_beside_prefill")).cast(pl.Float64),
        p1=(pl.col("last_new_token") + pl.col("last_beside_new_token")).cast(pl.Float64),
        r="r_mean",
        t=pl.col("t_mean").cast(pl.Float64),
    )
    prior = bytes_per_token / _BANDWIDTH if bytes_per_token else None
    margin = _UNMOVED_MARGIN if _unmoved(rows["t"]) else _BANDWIDTH_MARGIN
    solution, spread, errors = _robust(rows, prior, margin)
    of_a, of_b, note = _identified(rows, solution, errors, prior)
    return StepModel(
        t0_s=solution["t0"],
        a_s=solution["a"],
        b_s=solution["b"],
        p0_s=solution["p0"],
        p1_s=solution["p1"],
        n_lines=rows.height,
        residual_sd=spread,
        identified=of_a and of_b,
        b_identified=of_b,
        note=note,
    )


def _unmoved(values: pl.Series) -> bool:
    """Whether values hardly moved: what little they did is no evidence of their cost."""
    mean = as_float(values.mean(), 0.0)
    return as_float(values.std(), 0.0) < _MIN_CV * mean or not mean


def _clean(one: Timeline) -> pl.DataFrame:
    """Return the decode lines whose interval the model can explain.

    Left out: the first line, lines after a gap or an idle moment (their throughput includes
    the silence), without CUDA graph unless (almost) all are, with a swing of the batch beyond
    30 %, and of mixed batches.
    """
    if one.lines["mixed"].any():
        return one.lines.clear()
    clean = (
        pl.col("decode")
        & (pl.col("dt_s") > 0)
        & pl.col("last_prefill").is_not_null()
        & ~pl.col("first")
        & ~pl.col("after_gap")
        & ~pl.col("emptied")
        & (pl.col("r_change") <= 0.3)
        & (pl.col("r_mean") > 0)
    )
    rows = one.lines.select_seq(*_USED, clean=clean).filter("clean")
    # Steps without a graph are slower: they are a model of their own, of a server without one.
    graph = rows.filter(pl.col("cuda_graph").fill_null(True))
    rows = graph if graph.height >= MIN_LINES else rows.filter(~pl.col("cuda_graph"))
    if one.clock == "stamps":
        # Silence without a prefill: a stall that the usual spacing was too wide to show.
        rows = rows.filter(
            (pl.col("n_prefill") + pl.col("beside_prefill") > 0)
            | (pl.col("stamp_dt_s") <= 4 + 1.5 * pl.col("lines") * pl.col("dt_s"))
        )
    return rows


def _robust(
    rows: pl.DataFrame, prior: float | None, margin: float
) -> tuple[dict[str, float], float, dict[str, float]]:
    """Return the solution, the robust spread of its relative residuals, and errors of a and b.

    `margin` is the relative error of the prior on b.

    The errors are the standard errors that the lines alone leave, in seconds per request and
    per token; infinite if they do not tell it.
    """
    scaled = {name: rows[name] / rows["dt"] for name in _UNKNOWNS}
    # Unit columns keep the small system well conditioned.
    size = {name: as_float(values.abs().max(), 0.0) for name, values in scaled.items()}
    used = [name for name in _UNKNOWNS if size[name]]
    columns = {name: scaled[name] / size[name] for name in used}
    products = _products(columns)
    ones = pl.Series([1.0]).new_from_index(0, rows.height)
    weight = ones
    solution = dict.fromkeys(used, 0.0)
    spread, sums = _FIRST_SPREAD, {}
    for _ in range(_ROUNDS):
        sums = {of: as_float(product.dot(weight), 0.0) for of, product in products.items()}
        b = prior * size["b"] if prior and "b" in used else None
        informed = _with_prior(sums, b, margin, spread)
        before, solution = solution, _non_negative(used, informed)
        residual = ones
        for name in used:
            residual = residual - columns[name] * solution[name]
        residual = residual.abs()
        spread = 1.4826 * as_float(residual.median(), 0.0)
        limit = max(_HUBER_SD * spread, 1e-9)
        weight = ones.zip_with(residual <= limit, limit / residual)
        if all(abs(solution[n] - before[n]) <= 1e-6 * (abs(solution[n]) + 1e-9) for n in used):
            break
    errors = dict.fromkeys(("a", "b"), math.inf)
    # Where running requests hardly moved, t0 + a R is one term: b stands beside it.
    beside = [name for name in used if name != "a"] if _unmoved(rows["r"]) else used
    for name, names in (("a", used), ("b", beside)):
        if name in used:
            errors[name] = _standard_error(name, names, sums) * spread / size[name]
    values = {name: solution[name] / size[name] if name in used else 0.0 for name in _UNKNOWNS}
    return values, spread, errors


def _products(columns: Mapping[str, pl.Series]) -> dict[str, pl.Series]:
    """Return the products whose weighted sums are needed: "p q" of two unknowns, "p" of one.

    Each is of one more factor, the measured 1.
    """
    names = list(columns)
    return {
        **{f"{p} {q}": columns[p] * columns[q] for i, p in enumerate(names) for q in names[i:]},
        **columns,
    }


def _with_prior(
    sums: dict[str, float], b: float | None, margin: float, spread: float
) -> dict[str, float]:
    """Add the prior on b as one more observation, weighed against the lines' spread."""
    if b is None:
        return sums
    strength = (max(spread, 1e-4) / (margin * b)) ** 2
    return {**sums, "b b": sums["b b"] + strength, "b": sums["b"] + strength * b}


def _standard_error(name: str, names: Sequence[str], sums: dict[str, float]) -> float:
    """Return sqrt of the diagonal of the inverse; infinite where the system is singular."""
    unit = [1.0 if n == name else 0.0 for n in names]
    column = _solve(_matrix(names, sums), unit)
    variance = column[list(names).index(name)] if column else -1.0
    return math.sqrt(variance) if variance > 0 else math.inf


def _matrix(names: Sequence[str], sums: dict[str, float]) -> list[list[float]]:
    return [[sums.get(f"{p} {q}", sums.get(f"{q} {p}", 0.0)) for q in names] for p in names]


def _non_negative(names: Sequence[str], sums: dict[str, float]) -> dict[str, float]:
    """Solve the weighted least squares with no unknown below zero.

    Exact: of the (at most 31) subsets of unknowns whose free solution is non-negative, the one
    that explains most. A subset that no other unknown would improve is that one.
    """
    best: dict[str, float] = dict.fromkeys(names, 0.0)
    best_gain = 0.0
    for count in range(len(names), 0, -1):
        for subset in combinations(names, count):
            right = [sums[p] for p in subset]
            values = _solve(_matrix(subset, sums), right)
            if values is None or min(values) < 0:
                continue
            found = dict.fromkeys(names, 0.0) | dict(zip(subset, values, strict=True))
            if all(_left(p, found, sums) <= 0 for p in names if p not in subset):
                return found
            gain = sum(v * r for v, r in zip(values, right, strict=True))
            if gain > best_gain * (1 + _ROUNDING):
                best_gain, best = gain, found
    return best


def _left(name: str, found: Mapping[str, float], sums: dict[str, float]) -> float:
    """Return how much is left for an unknown to explain; negative where it would have to fall."""
    explained = (
        v * sums.get(f"{name} {q}", sums.get(f"{q} {name}", 0.0)) for q, v in found.items()
    )
    return sums[name] - math.fsum(explained)


def _solve(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """Solve a small linear system by elimination with pivoting; None if it is singular."""
    n = len(right)
    rows = [[*matrix[i], right[i]] for i in range(n)]
    for i in range(n):
        pivot = max(range(i, n), key=lambda k: abs(rows[k][i]))
        if abs(rows[pivot][i]) <= _SINGULAR * abs(matrix[i][i]):
            return None
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for k in range(n):
            if k != i:
                factor = rows[k][i] / rows[i][i]
                rows[k] = [x - factor * y for x, y in zip(rows[k], rows[i], strict=True)]
    return [rows[i][n] / rows[i][i] for i in range(n)]


def _identified(
    rows: pl.DataFrame, fitted: dict[str, float], errors: dict[str, float], prior: float | None
) -> tuple[bool, bool, str]:
    """Say whether the lines tell a, whether they tell b, and what limits the fit."""
    r, t = rows["r"], rows["t"]
    unmoved = _unmoved(r)
    assumed = f"; it is taken as bytes per token / {_BANDWIDTH / 1e12:.0f} TB/s" if prior else ""
    if not t.count():
        note = "the log prints no KV tokens, so the cost of context length is unknown"
        return False, False, note
    if _unmoved(t):
        note = f"KV tokens hardly moved, so their cost is not in the log{assumed}"
        return False, False, note
    together = as_float(rows.select_seq(pl.corr("r", "t")).item(), 0.0)
    if not unmoved and abs(together) > _MAX_CORRELATION:
        note = f"running requests and KV tokens moved together: a and b mix{assumed}"
        return False, False, note
    if errors["b"] > _MAX_ERROR * max(fitted["b"], prior or 0.0):
        return False, False, f"decoding alone takes too little of the time to tell b{assumed}"
    running = as_float(r.mean(), 0.0)
    step = fitted["t0"] + fitted["a"] * running + fitted["b"] * as_float(t.mean(), 0.0)
    if unmoved or errors["a"] * running > _MAX_ERROR_OF_STEP * step:
        return False, True, "running requests hardly moved: t0 and a are known only as t0 + a R"
    if rows.height < ADVISED_LINES:
        return True, True, f"only {rows.height} intervals; {ADVISED_LINES} are advised"
    return True, True, ""
