"""Lines that are written otherwise than those at the head of a log: quotes, or another wrapper.

Somebody's text stands among the server's own lines. But a log may be put together from what two
collectors wrote, or its writer may change while the server runs: from some line on none is
written as before. So strange lines are kept aside until `LONG` of them followed each other with
none of the others between, or until the log ends behind `MANY`: then they are the log's own.
"""

from __future__ import annotations

import polars as pl

from loganalyze.lines import Layout, Reader, Reading, chain_of
from loganalyze.prefixes import LONG, MANY, House

_Chain = tuple[str, ...]


class Strangers:
    """The strange lines of one log.

    Args:
        house: how the log writes its records. Wrappers that turn out to be its own are added.
    """

    def __init__(self, house: House) -> None:
        self._house = house
        self._chains: list[_Chain] = []
        self._refused: set[_Chain] = set()
        self._lines: list[pl.DataFrame] = []

    def __bool__(self) -> bool:
        """Whether lines wait to be settled."""
        return bool(self._lines)

    def ahead(self, house: House) -> Strangers:
        """Return the same strangers of a copy of the house, to be settled as if the log ended."""
        other = Strangers(house)
        other._chains, other._lines = [*self._chains], [*self._lines]
        other._refused = {*self._refused}
        return other

    def take(self, lines: pl.DataFrame, reading: Reading, layout: Layout | None) -> pl.DataFrame:
        """Keep the first of some lines, and those of its layout; return the others.

        Args:
            lines: lines in order: line_no, text, and seq and more where they are not 0.
            reading: what the first one says.
            layout: its layout, where the others are worth a look.
        """
        like = pl.Series([True]).extend_constant(value=False, n=len(lines) - 1)
        if layout is not None:
            like |= lines["text"].str.contains(layout.pattern)
        chain = chain_of(reading.format, reading.prefix)
        if chain not in self._chains:
            self._chains.append(chain)
        taken = lines.filter(like).with_columns_seq(chain=pl.lit(self._chains.index(chain)))
        self._lines.append(taken)
        return lines.filter(~like)

    def settle(
        self, known: pl.Series, reader: Reader, *, last: bool
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Tell what the lines kept so far are.

        Args:
            known: the numbers of the log's own lines since the last call, in order.
            reader: reads the lines.
            last: whether the log ends here.

        Returns:
            Lines of a wrapper that is the log's own by now, and lines that are quotes.
        """
        lines = pl.concat(self._lines, how="diagonal_relaxed")
        lines = lines.sort("line_no", maintain_order=True)
        told = [k for k, chain in enumerate(self._chains) if self._house.believes(chain)]
        ours = pl.col("chain").is_in(told)  # by now: the head of a log that grows told more
        if not (late := lines.filter(ours)).is_empty():
            self._lines = [lines.filter(~ours)] if len(late) < len(lines) else []
            return late.drop("chain"), late.drop("chain").clear()
        run = known.search_sorted(lines["line_no"], side="left")
        lines = lines.with_columns_seq(run=pl.Series(run))
        while True:
            refused = [self._chains.index(chain) for chain in self._refused]
            doubtful = lines.filter(~pl.col("chain").is_in(refused))
            size = pl.len().over("run")
            at_end = pl.lit(last) & (pl.col("run") == len(known)) & (size >= MANY)
            long = doubtful.filter((size >= LONG) | at_end)
            if long.is_empty():
                break
            first = long.filter(pl.col("run") == long["run"][0])[:LONG]
            house = House()
            text = "\n".join(first["text"]).encode()
            house.see(reader.styles(text), len(text))
            self._house.join(house, long=len(first) == LONG)
            chains = {self._chains[k] for k in first["chain"].unique()}
            if any(map(self._house.believes, chains)):
                ours = pl.col("line_no") >= first["line_no"][0]
                self._lines = []
                return lines.filter(ours).drop("chain", "run"), lines.filter(~ours)
            self._refused |= chains
        waits = (pl.col("run") == len(known)) & ~pl.col("chain").is_in(refused) & (not last)
        held = lines.filter(waits).drop("run")
        self._lines = [] if held.is_empty() else [held]
        return held.clear(), lines.filter(~waits)
