"""The program: `loganalyze`, or `python -m loganalyze` where the script is not on the path."""

import atexit
import gc
import os
import signal
import sys

from loganalyze.errors import missing_package


def run() -> None:
    """Run the command line; what goes wrong before it can say so itself is said here."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: nothing half is left
    # What modules make lives to the end: to look through it for garbage, while they load and
    # once more at the end, is a tenth of the time that a small log takes.
    gc.set_threshold(20_000, 20, 50)
    atexit.register(gc.freeze)
    # Frames are small, and what is read next is searched beside them: to hand work to a second
    # thread of Polars' costs more than it does. Each holds memory of its own, too.
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    try:
        from loganalyze.cli import main

        main(prog_name="loganalyze")
    except KeyboardInterrupt:
        print("loganalyze: interrupted", file=sys.stderr)
        sys.exit(130)
    except ModuleNotFoundError as error:
        missing = missing_package(error)
        if missing is None:
            raise
        print(f"loganalyze: {missing.message}\nhint: {missing.hint}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    run()
