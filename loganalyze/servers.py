"""Which writers of which logs are one server.

A file may hold several servers (containers, pods), and one server may write several files
(nodes, ranks, rotation). Two writers whose decode lines carry the same ranks are two servers;
writers of the same rank words with different numbers at the same time are ranks of one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from loganalyze import schema
from loganalyze.prefixes import PROCESS

if TYPE_CHECKING:
    from loganalyze.frames import Frames

#: Beyond this many writers in one log, each is taken as a server of its own.
_MAX_WRITERS = 500

#: So many writers of so few statistics lines each are no servers: another column names the
#: machine of a collector, or a request, on each row of a table. Of two lines each, they may be
#: the pods of `kubectl logs --tail=2`.
_FEW_LINES, _FEW_WRITERS = 1, 16

#: Stamps that run back by so much, so many times and on such a share of the lines: no order.
_BACK_S, _BACK_TIMES, _BACK_SHARE = 120, 8, 0.02

_RANKS = tuple(c.name for c in schema.RANKS)
_WRITER = ("source", "stream")


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers of a run.

    Attributes:
        of: writer -> number of its server, from 1.
        by_time: servers whose files are merged on time; others go by line number.
        backwards: servers whose lines stand newest first, as log viewers export them.
        offsets: source -> what to add to its line numbers so that a rotated set counts through.
    """

    of: Mapping[str, int]
    by_time: frozenset[int]
    backwards: frozenset[int]
    offsets: Mapping[str, int]

    def place(self, table: pl.DataFrame) -> pl.DataFrame:
        """Add `_server` (its number) and `_pos` (order of that server's records)."""
        key = pl.concat_str(pl.col("source"), pl.lit("\0"), pl.col("stream").fill_null(""))
        server = key.replace_strict(self.of, default=0, return_dtype=pl.Int32)
        offset = pl.col("source").replace_strict(self.offsets, default=0, return_dtype=pl.Int64)
        in_file = offset + pl.col("line_no")
        if self.backwards:
            in_file = pl.when(server.is_in(list(self.backwards))).then(-in_file).otherwise(in_file)
        if not self.by_time:
            return table.with_columns_seq(_server=server, _pos=in_file)
        stamp = pl.col("time").forward_fill().backward_fill().over("source")
        clock = stamp.dt.epoch("ms").fill_null(0)
        return table.with_columns_seq(_server=server).with_columns_seq(
            _pos=pl.when(pl.col("_server").is_in(list(self.by_time)))
            .then(clock)
            .otherwise(in_file)
        )


def find(frames: Frames, rotated: Mapping[str, str]) -> Servers:
    """Return the servers that wrote these records.

    Args:
        frames: records of all sources (of statistics lines, one per writer and rank is enough).
        rotated: source name -> name of the rotated set that it is a part of.
    """
    writers = pl.concat(
        [getattr(frames, name).select_seq(_WRITER) for name in ("batch", "event", "startup")]
    ).unique(maintain_order=True)
    lines = pl.col("lines").sum() if "lines" in frames.batch.columns else pl.len()
    decode = (
        frames.batch.lazy()
        .group_by(*_WRITER, *_RANKS)
        .agg(pl.col("time").min().alias("lo"), pl.col("time").max().alias("hi"), lines=lines)
        .collect()
    )
    ranks: dict[str, set[tuple[Any, ...]]] = {}
    said = Counter[str]()
    span: dict[str, tuple[Any, Any]] = {}
    for row in decode.iter_rows(named=True):
        writer = _writer(row["source"], row["stream"])
        ranks.setdefault(writer, set()).add(tuple(row[r] for r in _RANKS))
        said[writer] += row["lines"]
        lo, hi = span.get(writer, (row["lo"], row["hi"]))
        span[writer] = (
            min((t for t in (lo, row["lo"]) if t is not None), default=None),
            max((t for t in (hi, row["hi"]) if t is not None), default=None),
        )
    known = [_writer(*row) for row in writers.iter_rows()]
    nobodies = _nobodies(known, said)
    nameless = {writer for group in nobodies for writer in group}
    speakers = [w for w in known if w in ranks and w not in nameless]
    groups = [[writer] for writer in speakers]
    if len(speakers) <= _MAX_WRITERS:

        def is_one(a: str, b: str) -> bool:
            return _one_server(a, b, ranks, span, rotated)

        places: dict[str, list[list[str]]] = {}
        for writer in speakers:
            places.setdefault(_place(writer), []).append([writer])
        groups = [group for same in places.values() for group in _joined(same, is_one)]
        groups = _joined(groups, is_one)
    members = dict(enumerate([*groups, *nobodies], 1))
    of = {writer: server for server, group in members.items() for writer in group}
    near: dict[str, set[int]] = {}
    here: dict[str, set[int]] = {}
    for writer, server in of.items():
        near.setdefault(_source(writer), set()).add(server)
        here.setdefault(_place(writer), set()).add(server)
    for writer in known:
        if writer not in of:
            server = _server_of_silent(writer, near, here) or max(members, default=0) + 1
            of[writer] = server
            members.setdefault(server, []).append(writer)
            near.setdefault(_source(writer), set()).add(server)
            here.setdefault(_place(writer), set()).add(server)
    by_time = frozenset(
        server
        for server, writers_ in members.items()
        if len({_source(w) for w in writers_}) > 1
        and len({rotated.get(_source(w), w) for w in writers_}) > 1
    ) | {of[writer] for writer in _shuffled(frames) if writer in of}
    backwards = {of[writer] for writer in newest_first(frames) if writer in of} - by_time
    return Servers(of, by_time, frozenset(backwards), _offsets(frames, rotated))


def _shuffled(frames: Frames) -> list[str]:
    """Return the writers whose statistics stand in no order of time, as a shuffled log's do.

    A server that starts again sets its stamps back, too, but not every few lines.
    """
    back = pl.col("time").diff().dt.total_seconds() < -_BACK_S
    writers = (
        frames.batch.filter(pl.col("time").is_not_null())
        .group_by(*_WRITER)
        .agg(back.sum().alias("back"), pl.len().alias("lines"))
        .filter(pl.col("back") > pl.max_horizontal(_BACK_TIMES, pl.col("lines") * _BACK_SHARE))
    )
    return [_writer(row["source"], row["stream"]) for row in writers.iter_rows(named=True)]


def newest_first(frames: Frames) -> list[str]:
    """Return the writers whose statistics run back in time, but for what ranks are out of step."""
    step = pl.col("time").diff().dt.total_milliseconds()
    writers = (
        frames.batch.filter(pl.col("time").is_not_null())
        .group_by(*_WRITER)
        .agg(
            back=(step < 0).sum(),
            on=(step > 0).sum(),
            back_ms=-step.filter(step < 0).sum(),
            on_ms=step.filter(step > 0).sum(),
        )
        .filter(
            pl.col("back") >= _BACK_TIMES,
            pl.col("back") > 2 * pl.col("on"),
            pl.col("back_ms") > 2 * pl.col("on_ms"),
        )
    )
    return [_writer(row["source"], row["stream"]) for row in writers.iter_rows(named=True)]


def _nobodies(known: Sequence[str], said: Mapping[str, int]) -> list[list[str]]:
    """Return the writers, by source, that are too many and say too little to be servers."""
    few: dict[str, list[str]] = {}
    for writer in known:
        if 0 < said.get(writer, 0) <= _FEW_LINES:
            few.setdefault(_source(writer), []).append(writer)
    return [group for group in few.values() if len(group) > _FEW_WRITERS]


def _joined(groups: list[list[str]], is_one: Callable[[str, str], bool]) -> list[list[str]]:
    """Join groups of writers of which any two may be one server, the first ones first."""
    joined: list[list[str]] = []
    for group in groups:
        found = next((j for j in joined if all(is_one(a, b) for a in group for b in j)), None)
        if found is None:
            joined.append(list(group))
        else:
            found += group
    return joined


def _place(writer: str) -> str:
    """Return what a log says about a writer but for the process: its host, pod or container."""
    return PROCESS.sub("", writer)


def _source(writer: str) -> str:
    return writer.partition("\0")[0]


def _writer(source: str, stream: str | None) -> str:
    return f"{source}\0{stream or ''}"


def _one_server(
    a: str,
    b: str,
    ranks: Mapping[str, set[tuple[Any, ...]]],
    span: Mapping[str, tuple[Any, Any]],
    rotated: Mapping[str, str],
) -> bool:
    """Whether two writers of decode or prefill lines are one server."""
    source_a, source_b = _source(a), _source(b)
    group_a, group_b = rotated.get(source_a), rotated.get(source_b)
    if group_a is not None and group_a == group_b:
        return a.split("\0")[1] == b.split("\0")[1] or not ranks[a] & ranks[b]
    (lo_a, hi_a), (lo_b, hi_b) = span[a], span[b]
    timed = None not in (lo_a, hi_a, lo_b, hi_b)
    together = timed and lo_a <= hi_b and lo_b <= hi_a
    # Processes of one place that did not run at the same time: it was started again.
    again = timed and not together and _place(a) == _place(b)
    if ranks[a] & ranks[b]:
        return again
    shapes = {tuple(r is not None for r in t) for w in (a, b) for t in ranks[w]}
    if len(shapes) > 1:
        return False
    return together or again


def _server_of_silent(
    writer: str, near: Mapping[str, set[int]], here: Mapping[str, set[int]]
) -> int | None:
    """Return the server of a writer without statistics: the main process of the only server near.

    Where its file holds several servers, the only one in the same place is its own; where there
    are more or none nobody can tell whose it is (None), so it stands alone.

    Args:
        writer: the writer.
        near: source -> servers in it.
        here: place, its source included -> servers there.
    """
    for servers in (near.get(_source(writer), ()), here.get(_place(writer), ())):
        if len(servers) == 1:
            return next(iter(servers))
    return None


def _offsets(frames: Frames, rotated: Mapping[str, str]) -> dict[str, int]:
    """Return what to add to line numbers so that a rotated set counts through."""
    last = (
        pl.concat(
            [getattr(frames, name).select_seq("source", "line_no") for name in schema.FRAMES],
        )
        .group_by("source", maintain_order=True)
        .agg(pl.col("line_no").max())
    )
    offsets: dict[str, int] = {}
    reached: dict[str, int] = {}
    for source, lines in last.iter_rows():
        group = rotated.get(source)
        if group is not None:
            offsets[source] = reached.get(group, 0)
            reached[group] = offsets[source] + lines
    return offsets
