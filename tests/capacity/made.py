"""Sessions made by hand: decode and prefill lines of one server, without a log."""

from dataclasses import replace
from datetime import datetime, timedelta

import polars as pl

from loganalyze import capacity, derive, schema
from loganalyze.model import Capacity, ServerConfig, Session, SessionData, StepModel

START = datetime(2026, 2, 24, 12, 0, 0)

#: 30 ms + 0.5 ms a request + 0.1 us a token: easy sums.
MODEL = StepModel(0.030, 0.0005, 1e-7, 0.0, 0.0, 200, 0.01, True, True)


def decode(running, token, queue=100, pool=108_000, dt_s=2.4, **more):
    """Return one decode line of 40 steps that took `dt_s` seconds."""
    return {
        "phase": "decode",
        "running_req": running,
        "token": token,
        "token_usage": round(token / pool, 2),
        "queue_req": queue,
        "gen_throughput": 40 * running / dt_s,
        **more,
    }


def session(
    lines,
    tokens=108_000,
    model=MODEL,
    args=None,
    startup=(),
    number=1,
    events=(),
    role="unified",
    **config,
):
    """Return a session of some lines, 2 s apart.

    Args:
        lines: dicts of BATCH columns.
        tokens: printed pool size.
        model: step model; None leaves the fit to the lines; False for none at all.
        args: server arguments.
        startup: dicts of STARTUP columns.
        number: session id.
        events: dicts of EVENT columns.
        role: of the server.
        config: further fields of ServerConfig.
    """
    rows = [
        {
            "source": "made.log",
            "line_no": i,
            "session": number,
            "time": START + timedelta(seconds=2 * i),
            "time_has_date": True,
            "duplicate": False,
            **line,
        }
        for i, line in enumerate(lines, 10)
    ]
    settings = ServerConfig(args=args or {}, kv_capacity_tokens=tokens, capacity_line=2, **config)
    head = Session(
        id=number,
        source="made.log",
        start=START,
        end=START + timedelta(seconds=2 * len(rows) + 20),
        first_line=1,
        last_line=len(rows) + 10,
        ended_by="end_of_log",
        role=role,
        release_range=("0.5.9", "0.5.9"),
        config=settings,
    )
    data = SessionData(
        session=head,
        batch=derive.add_columns(_frame(rows, schema.BATCH)),
        event=_frame([{"duplicate": False, "debug": False, **e} for e in events], schema.EVENT),
        startup=_frame(startup, schema.STARTUP),
        request=schema.empty(schema.REQUEST),
    )
    measured = capacity.measure(data) if rows else Capacity(tokens, "log", 2)
    if model is False:
        measured = replace(measured, step_model=None)
    elif model is not None:
        measured = replace(measured, step_model=model)
    return replace(data, session=replace(head, capacity=measured))


def _frame(rows, columns):
    return schema.conform(pl.DataFrame(list(rows), infer_schema_length=None), columns)
