#!/usr/bin/env python3
"""Fuzz one target, guided by coverage: `python tests/fuzz/fuzz.py TARGET [libFuzzer options]`.

It starts from `corpus/TARGET` and stops at the first find, which it writes to the current
folder (`crash-...`, `timeout-...`, `oom-...`). Name a folder to keep new inputs in.
`-max_total_time=60` and `-runs=1000` bound a run.
"""

from __future__ import annotations

import operator
import os
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

os.environ["POLARS_MAX_THREADS"] = "1"  # inputs are small: threads only cost

import atheris  # noqa: E402
import polars as pl  # noqa: E402
from atheris import instrument_bytecode  # noqa: E402
from atheris.version_dependent import CMP_OP_SHIFT_AMOUNT  # noqa: E402

#: In the order in which Python's bytecode numbers them.
COMPARISONS = (operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge)


def compare(left: object, right: object, how: int, *rest: object) -> object:
    """Compare two objects as atheris does, but what polars compares without it.

    atheris never frees what a comparison gives. Of True that is no loss; of an expression for
    each condition of each rule it is 100 MB a minute.
    """
    if isinstance(left, pl.Expr | pl.Series) or isinstance(right, pl.Expr | pl.Series):
        return COMPARISONS[how >> CMP_OP_SHIFT_AMOUNT](left, right)
    return atheris._trace_cmp(left, right, how, *rest)


atheris.compare = compare
instrument_bytecode._COMPARE_FUNCTION = "compare"  # the name that instrumented code calls
with atheris.instrument_imports(include=["loganalyze"]):
    import targets

#: CPU seconds that an input may take. The slowest of the corpus takes a tenth of it.
MOST_S = 5.0
BOUNDS = ["-timeout=60", "-rss_limit_mb=500", "-max_len=8192", "-print_final_stats=1"]


def main() -> None:
    name, *options = sys.argv[1:]
    target = targets.TARGETS[name]
    targets.streams.MAX_RATIO_FROM = targets.BOMB

    def bounded(data: bytes) -> None:
        start = time.process_time()
        target(data)
        took = time.process_time() - start
        assert took < MOST_S, f"{took:.1f} s of CPU time"

    with tempfile.TemporaryDirectory() as new:  # libFuzzer writes to the first folder
        kept = [] if any(not o.startswith("-") for o in options) else [new]
        folders = [*kept, str(HERE / "corpus" / name)]
        atheris.Setup([sys.argv[0], *BOUNDS, *options, *folders], bounded)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
