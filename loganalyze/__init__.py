"""Why an SGLang server was slow, from its log alone.

In a notebook:

    import loganalyze

    report = loganalyze.analyze("server.log")
    report.verdict.headline
    loganalyze.read("server.log").batch      # a polars.DataFrame, one row per statistics line

What `__all__` names stays; see `loganalyze.api`. It is loaded when first used, so that
importing this package costs nothing.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "InputError",
    "LogAnalyzeError",
    "LogFrames",
    "Report",
    "Severity",
    "UsageError",
    "__version__",
    "analyze",
    "from_json",
    "read",
    "to_html",
    "to_json",
    "to_markdown",
    "to_text",
]

if TYPE_CHECKING:
    from loganalyze.api import (
        LogFrames,
        analyze,
        from_json,
        read,
        to_html,
        to_json,
        to_markdown,
        to_text,
    )
    from loganalyze.errors import InputError, LogAnalyzeError, UsageError
    from loganalyze.model import Report, Severity
else:

    def __getattr__(name: str) -> object:
        """Load the public names when one of them is first used."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from loganalyze import api

        globals().update({public: getattr(api, public) for public in api.__all__})
        return globals()[name]

    def __dir__() -> list[str]:
        """Name what can be completed."""
        return sorted({*globals(), *__all__})
