"""`loganalyze query`: SQL over the dataset of a scan."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal

import click

from loganalyze.cli import _outputs, _shared
from loganalyze.errors import UsageError

if TYPE_CHECKING:
    import polars as pl

#: Rows that are printed for a reader, and columns that the values of a table's column take.
_ROWS, _LEAST = 50, 8


@click.command(
    epilog=_shared.examples(
        'loganalyze query archive/ "SELECT log, headline FROM runs WHERE is_problem"',
        'loganalyze query archive/ "SELECT primary, count(*) AS n FROM runs GROUP BY primary"',
        'loganalyze query archive/ "SELECT * FROM findings" --json | jq .summary',
        "loganalyze query archive/ --schema",
    )
)
@click.argument("folder", metavar="DIR")
@click.argument("sql", required=False)
@click.option("--schema", "describe", is_flag=True, help="List the tables and their columns.")
@click.option(
    "--csv", "form", flag_value="csv", default="table", type=str, help="Print all rows as CSV."
)
@click.option("--json", "form", flag_value="json", help="Print all rows, one JSON object a line.")
def query(
    folder: str, sql: str | None, describe: bool, form: Literal["table", "csv", "json"]
) -> None:
    """Run SQL on the tables that `scan` wrote: runs, findings, episodes and series.

    DIR is the folder of results. The same Parquet files can be read by Polars and DuckDB. They
    name logs and hosts as they are, unlike reports.
    """
    from loganalyze.scan import dataset
    from loganalyze.scan import query as library

    if describe:
        _outputs.to_stdout(dataset.describe().rstrip())
        return
    if not sql:
        raise click.UsageError("Give a statement, or --schema.")
    _outputs.to_stdout(_text(library.run(folder, sql), form))


def _text(rows: pl.DataFrame, form: str) -> str:
    """Return rows for a terminal, or all of them for a program."""
    import polars as pl

    from loganalyze import export
    from loganalyze.report import words

    if form == "csv":
        if any(dtype.is_nested() for dtype in rows.dtypes):
            raise UsageError("a CSV holds no lists", hint="--json prints them")
        return rows.with_columns_seq(export.csv_text(), export.times()).write_csv().rstrip("\n")
    if form == "json":
        plain = rows.with_columns_seq(export.times()).iter_rows(named=True)
        lines = (json.dumps(row, default=_plain) for row in plain)
        return "\n".join(lines)
    # Log text must not steer a terminal.
    shown = rows.with_columns_seq(
        pl.col(pl.String).map_elements(words.clean, return_dtype=pl.String, skip_nulls=True)
    )
    if sum(max(len(name), _LEAST) + 3 for name in shown.columns) > _shared.width():
        return _records(shown)
    with pl.Config(
        tbl_rows=_ROWS,
        tbl_cols=-1,
        tbl_width_chars=max(_shared.width(), 60),
        fmt_str_lengths=80,
        tbl_hide_dataframe_shape=True,
        tbl_hide_column_data_types=True,
        tbl_formatting="ASCII_MARKDOWN",
    ):
        text = str(shown)
    return text + _rest(rows)


def _records(rows: pl.DataFrame) -> str:
    """Return rows that are too wide for a table, one value a line; nulls are left out."""
    wide = max(map(len, rows.columns), default=0)
    parts = []
    for number, row in enumerate(rows.head(_ROWS).iter_rows(named=True), 1):
        said = [f"{k:{wide}}  {_plain(v)}" for k, v in row.items() if v is not None]
        parts.append("\n".join([f"-- row {number} of {rows.height:,}", *said]))
    return ("\n".join(parts) + _rest(rows)).lstrip("\n")


def _rest(rows: pl.DataFrame) -> str:
    """Say that there are no rows, or how many are not shown."""
    if not rows.height:
        return "\n(no rows)"
    if rows.height <= _ROWS:
        return ""
    return f"\n({rows.height:,} rows, of which {_ROWS} are shown; --csv or --json prints all)"


def _plain(value: object) -> str:
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
