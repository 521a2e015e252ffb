"""Split a log into sessions: one per life of a server process.

Pool size, running cap and flags belong to a session, not to a file: a restart may change
them all. Each server's records (servers.py) are cut where it started again.

Why (2026-11): a line-by-line rule ("every server_args= is a restart") fails on offline
engines, which print it twice, and on excerpts cut by grep, which lost it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import polars as pl

from loganalyze import config, derive, duplicates, fatal, releases, schema, servers
from loganalyze.model import ServerConfig, Session, SessionData
from loganalyze.servers import Servers

if TYPE_CHECKING:
    from loganalyze.frames import Frames

#: Records with which a server process starts; the first of a run of them begins a session.
START_KINDS = ("server_args", "weight_load_begin", "capacity")

#: Frames in which a record that several ranks printed is marked as a duplicate.
_MARKED = ("batch", "event")

#: A stamp this far behind the line before it is another run, not jitter between ranks ...
_BACKWARD_S = 120
#: ... unless it is the end of daylight-saving time.
_DST_S = (3_540, 3_660)


@dataclass(frozen=True, slots=True)
class Plan:
    """Where sessions begin. `starts` has one row per session: `_server`, `_pos`, `session`."""

    servers: Servers
    starts: pl.DataFrame

    def assign(self, table: pl.DataFrame) -> pl.DataFrame:
        """Return the rows of any frame with their session, `_server` and `_pos`."""
        placed = self.servers.place(table.drop("session"))
        session = (
            placed.select_seq("_server", "_pos")
            .with_row_index("_row")
            .sort("_pos", maintain_order=True)
            .join_asof(self.starts, on="_pos", by="_server", check_sortedness=False)
            .sort("_row")["session"]
        )
        return placed.with_columns_seq(session)


def plan(frames: Frames, rotated: Mapping[str, str] | None = None) -> Plan:
    """Find the sessions of a run.

    Args:
        frames: all start-up records, and of the others at least one between any two of them.
        rotated: source name -> name of the rotated set that it is a part of.

    Returns:
        Sessions with ids from 1, server by server, in the order in which they began.
    """
    found = servers.find(frames, rotated or {})
    tables = {name: found.place(getattr(frames, name)) for name in ("batch", "event", "startup")}
    numbers = pl.concat([t["_server"] for t in tables.values()]).unique().sort().to_list()
    rows = {name: _by(table, "_server") for name, table in tables.items()}
    starts = [
        (number, pos)
        for number in numbers
        for pos in _starts({n: rows[n].get(number, tables[n].clear()) for n in tables})
    ]
    return Plan(
        found,
        pl.DataFrame(
            {
                "_server": [number for number, _ in starts],
                "_pos": [pos for _, pos in starts],
                "session": list(range(1, len(starts) + 1)),
            },
            schema={"_server": pl.Int32, "_pos": pl.Int64, "session": pl.Int32},
        ).sort("_pos"),
    )


def split(frames: Frames, rotated: Mapping[str, str] | None = None) -> list[SessionData]:
    """Return one SessionData per server process life, in the order of their ids.

    Args:
        frames: all records of all sources, each frame in (source, line) order, sources in
            the order given.
        rotated: as in `plan`.

    Returns:
        Sessions with ids from 1. `session.capacity` is still empty.
    """
    found = plan(frames, rotated)
    parts: dict[str, dict[int, pl.DataFrame]] = {}
    empty: dict[str, pl.DataFrame] = {}
    several = set()
    for name in schema.FRAMES:
        table = found.assign(getattr(frames, name))
        if name == "batch":
            table = derive.add_columns(table)
        if name in _MARKED and duplicates.possible(table):
            several.add(name)
        parts[name], empty[name] = _by(table, "session"), table.clear()
    starts = found.starts.sort("session")
    restarted = starts.select_seq(
        (pl.col("_server") == pl.col("_server").shift(-1)).fill_null(False).alias("restarted")
    )
    return [
        _session(
            id_,
            {
                name: _in_order(of.get(id_, empty[name]), found.servers)
                for name, of in parts.items()
            },
            server=server,
            restarted=again,
            several=several,
        )
        for id_, server, again in zip(
            starts["session"], starts["_server"], restarted["restarted"], strict=True
        )
    ]


def _by(table: pl.DataFrame, column: str) -> dict[int, pl.DataFrame]:
    """Return the rows for each number in a column, in their order."""
    return {rows[column][0]: rows for rows in table.partition_by(column)}


def _in_order(rows: pl.DataFrame, found: Servers) -> pl.DataFrame:
    """Return the rows of a session; of a shuffled log, or one backwards, in the order of time."""
    server = rows["_server"][0] if rows.height else 0
    shuffled = server in found.by_time and rows["source"].n_unique() == 1
    if not shuffled and server not in found.backwards:
        return rows
    return rows.sort("_pos", maintain_order=True)


# -- where a server started again ---------------------------------------------------------


def _starts(part: Mapping[str, pl.DataFrame]) -> list[int]:
    """Return the positions at which a session begins; the first is the first record's."""
    positions = [t["_pos"].min() for t in part.values() if t.height]
    starts = [min(int(p) for p in positions if isinstance(p, int))]
    work = part["batch"]["_pos"].sort()
    begun = part["startup"].filter(pl.col("kind").is_in(START_KINDS))["_pos"].to_list()
    jumps = _backward_jumps(part["batch"])
    for pos, jumped in sorted([(p, False) for p in begun] + [(p, True) for p in jumps]):
        worked = work.search_sorted(pos) > work.search_sorted(starts[-1])
        if worked and (not jumped or pos > starts[-1]):
            starts.append(pos)
    return starts


def _backward_jumps(batch: pl.DataFrame) -> list[int]:
    """Return the positions of lines stamped well before the line above: another run begins."""
    if batch["time"].null_count() == batch.height:
        return []
    back = -pl.col("time").diff().dt.total_seconds().over("source")
    jump = (back > _BACKWARD_S) & ~back.is_between(*_DST_S)
    lines = batch.select_seq("source", "time", "_pos").sort("_pos", maintain_order=True)
    return lines.filter(jump)["_pos"].to_list()


# -- one session --------------------------------------------------------------------------


def _session(
    id_: int,
    cut: dict[str, pl.DataFrame],
    *,
    server: int,
    restarted: bool,
    several: Collection[str],
) -> SessionData:
    """Return one session from its rows; `several` names the frames that several ranks wrote."""
    copies = duplicates.copies(cut["batch"])
    batch, event = (
        duplicates.mark(cut[name], schema.FRAMES[name], copies)
        if name in several or copies > 1
        else cut[name].with_columns_seq(duplicate=pl.lit(False))
        for name in _MARKED
    )
    startup = cut["startup"]
    release_range = _release_range(batch, event, startup)
    settings = config.read(startup, release_range)
    records = pl.concat([t[["source", "line_no"]] for t in cut.values()])
    where = batch if batch.height else records
    lines = records.group_by("source").agg(
        pl.col("line_no").min().alias("first"), pl.col("line_no").max().alias("last")
    )
    first, last = where["source"][0], where["source"][-1]
    start, end = derive.time_span(*cut.values())
    session = Session(
        id=id_,
        source=first,
        start=start,
        end=end,
        first_line=lines.filter(pl.col("source") == first)["first"][0],
        last_line=lines.filter(pl.col("source") == last)["last"][0],
        ended_by=_ended_by(event, batch, restarted=restarted),
        role=_role(batch, settings),
        release_range=release_range,
        config=settings,
        server=server,
    )
    return SessionData(
        session=session,
        batch=schema.conform(batch, schema.BATCH),
        event=schema.conform(event, schema.EVENT),
        startup=schema.conform(startup, schema.STARTUP),
        request=duplicates.once(schema.conform(cut["request"], schema.REQUEST), copies),
        copies=copies,
    )


def _ended_by(
    event: pl.DataFrame, batch: pl.DataFrame, *, restarted: bool
) -> Literal["stop", "crash", "end_of_log"]:
    """Return how the session ended.

    An orderly stop prints SIGTERM; a process that was followed by another without it died.
    """
    if not event.height:
        return "crash" if restarted else "end_of_log"
    last_work = batch["_pos"].max() if batch.height else -1
    last = pl.col("_pos") >= last_work
    # A child's end is told before the other ranks have stopped, an orderly one as it begins.
    told = pl.col("kind").is_in(["sigquit", "sigterm"])
    if fatal.died(event, last, worked=batch.height > 0).filter(last | told).height:
        return "crash"
    if event.filter((last & pl.col("kind").is_in(fatal.STOPS)) | told).height:
        return "stop"
    return "crash" if restarted else "end_of_log"


def _role(batch: pl.DataFrame, settings: ServerConfig) -> Literal["unified", "prefill", "decode"]:
    """Return the disaggregation role: from the arguments, else from the fields printed."""
    mode = settings.arg("disaggregation_mode")
    if mode == "prefill":
        return "prefill"
    if mode == "decode":
        return "decode"

    def printed(phase: str, *columns: str) -> bool:
        rows = batch.select_seq(pl.col(columns).filter(pl.col("phase") == phase))
        return any(column.null_count() < rows.height for column in rows)

    if printed("decode", "pre_allocated_usage", "transfer_req", "prealloc_req"):
        return "decode"
    if printed(
        "prefill", "unbootstrapped_req", "bootstrap_req", "inflight_req", "transferring_req"
    ):
        return "prefill"
    return "unified"


def ranks_missing(split: Sequence[SessionData]) -> tuple[str, str] | None:
    """Return the first and the last of the ranks below those that print: on another node.

    None where rank 0 prints, or no line names its rank.
    """
    tables = [table for data in split for table in (data.batch, data.event, data.startup)]
    for word, column in (("DP", "dp_rank"), ("TP", "tp_rank")):
        lowest = [table[column].min() for table in tables if table[column].max() is not None]
        ranks = [rank for rank in lowest if isinstance(rank, int) and rank >= 0]
        if ranks:
            return (f"{word}0", f"{word}{min(ranks) - 1}") if min(ranks) > 0 else None
    return None


def _release_range(
    batch: pl.DataFrame, event: pl.DataFrame, startup: pl.DataFrame
) -> tuple[str, str] | None:
    """Return the releases that every line of the session could come from.

    None where the lines contradict each other: they are of several releases.
    """
    for tables in ((batch, event, startup), (batch, event)):
        grammar = pl.concat([t[["release_lo", "release_hi"]] for t in tables])
        lo, hi = grammar["release_lo"].max(), grammar["release_hi"].min()
        if isinstance(lo, int) and isinstance(hi, int) and lo <= hi:
            return releases.RELEASES[lo], releases.RELEASES[hi]
    return None
