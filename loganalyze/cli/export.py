"""`loganalyze export`: the records of a log as a table."""

from __future__ import annotations

import os
from typing import Literal, Unpack

import click

from loganalyze.cli import _outputs, _shared
from loganalyze.errors import UsageError

FRAMES = ("batch", "event", "startup", "request")
Form = Literal["parquet", "csv", "ndjson"]
ENDINGS: dict[str, Form] = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
}
FORMS = sorted(set(ENDINGS.values()))


def complete_column(ctx: click.Context, param: click.Parameter, typed: str) -> list[str]:
    """Return the columns of --frame, or of all frames, that begin with what was typed."""
    from loganalyze import schema

    chosen = ctx.params.get("frame")
    frames = [chosen] if chosen in FRAMES else FRAMES
    names = dict.fromkeys(column.name for frame in frames for column in schema.FRAMES[frame])
    return [name for name in names if name.startswith(typed)]


@click.command(
    epilog=_shared.examples(
        "loganalyze export server.log --frame batch -o batch.parquet",
        "loganalyze export server.log --frame event -o events.csv --since -2h",
        "loganalyze export server.log --frame batch --column time --column kv_usage -o kv.csv",
        "loganalyze export server.log --frame batch --format ndjson -o - | jq .gen_throughput",
    )
)
@_shared.log_argument
@click.option("--frame", type=click.Choice(FRAMES), required=True, help="Which records.")
@click.option("-o", "--output", metavar="FILE|-", required=True, help="Where to write them.")
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMS),
    help="How to write them; without it, the file's ending says so.",
)
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="NAME",
    shell_complete=complete_column,
    help="Write only this column; may be given again. All columns by default.",
)
@_shared.force_option
@_shared.choosing_options
@_shared.redact_option
@click.pass_context
def export(
    ctx: click.Context,
    logs: tuple[str, ...],
    frame: Literal["batch", "event", "startup", "request"],
    output: str,
    form: Form | None,
    columns: tuple[str, ...],
    force: bool,
    redact: bool,
    **chosen: Unpack[_shared.Chosen],
) -> None:
    """Write a log's records to a Parquet, CSV or NDJSON file.

    Every column of the frame is there, the same for every log, in the order of the lines:
    batch (decode and prefill lines), event, startup or request. --column chooses some. Texts
    are redacted as in reports.
    """
    form = form or ENDINGS.get(os.path.splitext(output)[1].lower())
    if form is None:
        ending = os.path.splitext(output)[1]
        raise UsageError(
            f"{output}: cannot tell in which format to write"
            + (f", {ending} is none that export knows" if ending else ""),
            hint=f"end it in {', '.join(ENDINGS)}, or add --format ({', '.join(FORMS)})",
        )
    _outputs.check_outputs([output], logs, force)

    from loganalyze import export as library

    keep = _shared.filters(chosen)
    with _outputs.whole(output) as path, _shared.progress(logs) as tick:
        unreadable = library.write(
            logs,
            path,
            frame=frame,
            form=form,
            columns=columns,
            chosen=keep,
            redact=redact,
            on_progress=tick,
        )
    if output != _outputs.STDIO:
        _shared.tell(f"wrote {output}")
    _shared.print_unreadable(unreadable)
    ctx.exit(_shared.SOME_UNREADABLE if unreadable else 0)
