"""What the servers printed last, and over the last minutes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import polars as pl

#: Width and number of the buckets of a trail: ten minutes.
BUCKET_S = 10.0
BUCKETS = 60
#: A rank that printed nothing for this long is not counted any more.
_STALE_S = 120.0
#: A clock this far behind was set back (or one stamp was wrong): time begins anew.
SET_BACK = timedelta(seconds=120)

#: The pool's way to full is only told if usage climbs this steadily over the last minutes.
_TREND_BUCKETS = 18
_TREND_LEAST = 6
_TREND_FIT = 0.6
_TREND_SLACK = 0.02
_TREND_MAX_S = 3_600.0

_VALUES = ("usage", "running", "waiting", "rate")


@dataclass(frozen=True, slots=True)
class Now:
    """The latest values, over all ranks; None where nothing was printed yet.

    Attributes:
        time, line: stamp and number of the newest statistics line.
        usage: of the fullest rank, as a fraction.
        running, waiting: requests; waiting includes the queues of disaggregation.
        rate: decode token/s; `rate_per_req` the same per running request.
        full_in_s: seconds until the pool is full, if it goes on like this; None if it does
            not climb.
    """

    time: datetime | None = None
    line: int = 0
    usage: float | None = None
    running: int | None = None
    waiting: int | None = None
    rate: float | None = None
    rate_per_req: float | None = None
    full_in_s: float | None = None


@dataclass(slots=True)
class _RankNow:
    time: datetime | None
    usage: float | None = None
    running: int | None = None
    waiting: int | None = None
    rate: float | None = None


class Gauges:
    """Keeps the latest values of each rank, and a trail of their sums.

    Attributes:
        now: the latest values.
        idle_s: seconds of log time since a request was running or waiting.
    """

    def __init__(self) -> None:
        self.now = Now()
        self.idle_s = 0.0
        self._ranks: dict[tuple[Any, ...], _RankNow] = {}
        self._trail: deque[dict[str, list[float]]] = deque(maxlen=BUCKETS)
        self._bucket: int | None = None
        self._busy: datetime | None = None
        self._count = 0

    def update(self, rows: pl.DataFrame) -> None:
        """Take statistics lines, in order; only their last ones matter beyond the trail."""
        keep = rows.tail(20_000).select(
            "source",
            pl.col("stream") if "stream" in rows.columns else pl.lit(None).alias("stream"),
            "dp_rank",
            "line_no",
            "time",
            "phase",
            "kv_usage",
            "running_req",
            waiting=pl.when(pl.col("queue_req").is_not_null()).then(
                pl.col("queue_req")
                + pl.coalesce("prealloc_req", pl.lit(0))
                + pl.coalesce("bootstrap_req", "unbootstrapped_req", pl.lit(0))
            ),
            rate="gen_throughput",
        )
        for (
            source,
            stream,
            dp,
            line,
            time,
            phase,
            usage,
            running,
            waiting,
            rate,
        ) in keep.iter_rows():
            one = self._ranks.setdefault((source, stream, dp), _RankNow(time))
            if time is not None and one.time is not None and one.time - time > SET_BACK:
                self._begin_anew(time)
                self._ranks[source, stream, dp] = one
            one.time = time if time is not None else one.time
            one.usage = usage if usage is not None else one.usage
            one.waiting = waiting if waiting is not None else one.waiting
            if phase == "decode":
                one.running = running if running is not None else one.running
                one.rate = rate if rate is not None else one.rate
            self._step(time, line)

    def _step(self, time: datetime | None, line: int) -> None:
        """Put the values after one line into the trail."""
        self._count += 1
        if time is not None and (self.now.time is None or time > self.now.time):
            self._drop_stale(time)
        newest = max((t for t in (time, self.now.time) if t is not None), default=None)
        self.now = self._total(newest, line)
        busy = (self.now.running or 0) + (self.now.waiting or 0) > 0
        if busy or self._busy is None:
            self._busy = newest
        if newest is not None and self._busy is not None:
            self.idle_s = (newest - self._busy).total_seconds()
        bucket = int(newest.timestamp() // BUCKET_S) if newest is not None else self._count // 20
        if self._bucket is None or bucket > self._bucket:
            skipped = 0 if self._bucket is None else min(bucket - self._bucket - 1, BUCKETS)
            self._trail.extend({} for _ in range(skipped))  # silence stays visible
            self._trail.append({})
            self._bucket = bucket
        for name in _VALUES:
            value = getattr(self.now, name)
            if value is not None:
                self._trail[-1].setdefault(name, []).append(float(value))

    def _begin_anew(self, time: datetime) -> None:
        """Go on from a clock that was set back; what was stamped later is no present value."""
        if self.now.time is not None and self.now.time - time > SET_BACK:
            self.now = replace(self.now, time=None)
            self._bucket = self._busy = None
            self._ranks = {
                k: r for k, r in self._ranks.items() if r.time is None or r.time <= time
            }

    def _drop_stale(self, now: datetime) -> None:
        old = [
            key
            for key, one in self._ranks.items()
            if one.time is not None and (now - one.time).total_seconds() > _STALE_S
        ]
        for key in old:
            del self._ranks[key]

    def _total(self, time: datetime | None, line: int) -> Now:
        ranks = list(self._ranks.values())

        def add(name: str) -> Any:  # noqa: ANN401 - int or float, as printed
            values = [getattr(r, name) for r in ranks if getattr(r, name) is not None]
            return sum(values) if values else None

        running, rate = add("running"), add("rate")
        return Now(
            time=time,
            line=line,
            usage=max((r.usage for r in ranks if r.usage is not None), default=None),
            running=running,
            waiting=add("waiting"),
            rate=rate,
            rate_per_req=round(rate / running, 2) if rate is not None and running else None,
        )

    def trail(self) -> Mapping[str, Sequence[float | None]]:
        """Return the mean of each value in each bucket, oldest first; None in silence."""
        return {
            name: [
                sum(bucket[name]) / len(bucket[name]) if bucket.get(name) else None
                for bucket in self._trail
            ]
            for name in _VALUES
        }

    def latest(self) -> Now:
        """Return the latest values, with the time to full."""
        return replace(self.now, full_in_s=self._full_in_s())

    def _full_in_s(self) -> float | None:
        """Return the seconds until usage is 1, by a straight line through the last minutes."""
        usage = list(self.trail()["usage"])[-_TREND_BUCKETS:]
        points = [(k * BUCKET_S, u) for k, u in enumerate(usage) if u is not None]
        if len(points) < _TREND_LEAST or self.now.time is None:
            return None
        if points[-1][1] < max(u for _, u in points) - _TREND_SLACK:
            return None  # it climbed, and has stopped
        n = len(points)
        mean_t, mean_u = sum(t for t, _ in points) / n, sum(u for _, u in points) / n
        tt = sum((t - mean_t) ** 2 for t, _ in points)
        uu = sum((u - mean_u) ** 2 for _, u in points)
        tu = sum((t - mean_t) * (u - mean_u) for t, u in points)
        if tu <= 0 or uu == 0 or tu * tu < _TREND_FIT * tt * uu:
            return None
        left = (1.0 - points[-1][1]) / (tu / tt)
        return left if left <= _TREND_MAX_S else None
