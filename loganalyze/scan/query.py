"""SQL over the dataset of a scan."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import polars as pl

from loganalyze import schema
from loganalyze.errors import InputError, UsageError
from loganalyze.scan import dataset
from loganalyze.scan.state import DATASET

#: What a query starts with, after comments and brackets; anything else would change something.
_QUERY = re.compile(r"(?is)(?:\s|\(|--[^\n]*(?:\n|$)|/\*.*?\*/)*+(?:select|with)\b")

#: How Polars says that a statement is no SQL.
_SYNTAX = re.compile(r"sql parser error: Expected: (.*), found: (.*) at Line: \d+, Column: (\d+)")

#: Polars' functions that read files, or addresses, of any kind. No column starts like this, so
#: the word is refused wherever it stands: in quotes, before a comment, in a text.
_READS = re.compile(r"(?i)read_\w+")


def tables(out: str) -> dict[str, pl.LazyFrame]:
    """Return the tables of a scan's folder, with the present schema.

    Raises:
        InputError: it holds no dataset.
    """
    if not (Path(out) / DATASET).is_dir():
        what = "holds no dataset" if Path(out).is_dir() else "there is no such folder"
        raise InputError(f"{out}: {what}", hint="name the folder that `loganalyze scan -o` wrote")
    return {name: _table(Path(out) / DATASET / name, name) for name in dataset.TABLES}


def _table(folder: Path, name: str) -> pl.LazyFrame:
    columns = dataset.TABLES[name]
    parts = sorted(folder.glob("*.parquet"))
    if not parts:
        return schema.empty(columns).lazy()
    return pl.scan_parquet(parts, schema=schema.dtypes(columns), missing_columns="insert")


def run(out: str, sql: str) -> pl.DataFrame:
    """Return what an SQL statement selects from the tables.

    Raises:
        InputError: the folder holds no dataset.
        UsageError: the statement is no query, cannot be read, names what does not exist, or
            would read something else than the tables.
    """
    found = tables(out)
    if not _QUERY.match(sql):
        table = sql.strip() if sql.strip() in found else "runs"
        raise UsageError(
            f"{sql}: is no query: one starts with SELECT or WITH",
            hint=f'such as "SELECT * FROM {table}"; tables are {", ".join(found)}',
        )
    if word := _READS.search(sql):
        raise UsageError(
            f"{word[0].lower()}: a query reads the tables and nothing else",
            hint="other files can be joined in Polars or DuckDB",
        )
    try:
        return pl.SQLContext(found).execute(sql, eager=True)
    except pl.exceptions.PolarsError as error:
        raise _said(error) from None


def _said(error: pl.exceptions.PolarsError) -> UsageError:
    """Return what is wrong with a statement, and what was meant perhaps."""
    said = f"the statement fails: {str(error).splitlines()[0]}"
    hint = f"tables are {', '.join(dataset.TABLES)}; --schema lists their columns"
    if syntax := _SYNTAX.search(said):
        expected, found, place = syntax.groups()
        said = f"the statement, character {place}: expected {expected}, found {found}"
    elif unknown := re.search(r'unable to find column "(.*?)"; valid columns: (.*)', said):
        said, known = f"no column {unknown[1]}", re.findall(r'"(.*?)"', unknown[2])
        if near := difflib.get_close_matches(unknown[1], known, 3):
            hint = f"did you mean {', '.join(near)}? --schema lists all"
    elif missing := re.search(r"relation '(.*)' was not found", said):
        said = f"no table {missing[1]}"
    return UsageError(said, hint=hint)
