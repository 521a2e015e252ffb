"""How a moment is written: the dates and clocks of SGLang, of loggers and of log shippers.

A stamp is found by a pattern, and told by its text how it is to be read: `clock_of` names a form
that Polars reads, `like` gives a pattern for stamps that are written in the same way. What day
and month of 03/04/2026 are cannot be told, but for a clock of twelve hours; such a date is
passed over. Months and weekdays are English, as loggers print them whatever the locale, or
numbers.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

DATE = r"[0-9]{4}[-/][0-9]{2}[-/][0-9]{2}"
CLOCK = r"[0-9]{2}:[0-9]{2}:[0-9]{2}"
FRACTION = r"(?:[.,][0-9]{1,9})?+"
#: Seconds since 1970, or milliseconds.
EPOCH = r"1[0-9]{9}(?:\.[0-9]{1,9}|[0-9]{3})?"
ZONE = r"(?:UTC|GMT)[+-][0-9]{1,2}(?::[0-9]{2})?|Z|UTC|GMT|[+-][0-9]{2}(?::?[0-9]{2})?"
#: Names of zones; most mean several, so that they tell nothing.
ABBREVIATION = r"(?:[A-Z]{2,4}T|MSK)"

#: Names in full or short, and other words that begin like them: those give no time.
_MONTH = (
    r"(?:(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]{0,6}"
    r"|JAN|FEB|MAR|APR|MAY|JUN|JUL|AUG|SEP|OCT|NOV|DEC)"
)
WEEKDAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]{0,6}"
_DAY = r"(?: ?[1-9]|[0-3][0-9])"
_HALF = r" ?[AaPp][Mm]"
_ANY_CLOCK = rf"[0-9]{{1,2}}:[0-9]{{2}}:[0-9]{{2}}(?:[.,][0-9]{{1,9}}|:[0-9]{{3}})?(?:{_HALF})?"
#: Between a date and its clock.
_JOIN = r"(?:,? {1,2}|[T:_-]|,| at | @ | - )"
#: Date and clock of other forms than ISO's. What forms share is written once: patterns of a few
#: kB take as long to compile as a small log to read.
_FORMS = (
    r"(?:"
    rf"[0-9]{{4}}(?:-{_MONTH}-|/{_MONTH}/| {_MONTH} ){_DAY}"
    rf"|(?:{WEEKDAY},? )?"
    rf"(?:{_MONTH} {_DAY},? [0-9]{{4}}|{_DAY}(?:-{_MONTH}-|/{_MONTH}/| {_MONTH} )[0-9]{{4}})"
    r"|[0-9]{2}\.[0-9]{2}\.[0-9]{4}|[0-9]{4}\.[0-9]{2}\.[0-9]{2}"
    r"|[0-9]{4}(?:-[0-9]{1,2}-|/[0-9]{1,2}/)[0-9]{1,2}"
    rf"){_JOIN}{_ANY_CLOCK}",
    rf"(?:{WEEKDAY} )?{_MONTH} {_DAY} {_ANY_CLOCK}(?: [A-Z]{{3,4}})? [0-9]{{4}}(?![-/:.]?[0-9])",
    rf"[0-9]{{1,2}}/[0-9]{{1,2}}/[0-9]{{4}},? {{1,2}}{_ANY_CLOCK}(?<=[AaPp][Mm])",
    r"[0-9]{4}年 ?[0-9]{1,2}月 ?[0-9]{1,2}日"
    rf"(?: ?(?:星期|周|週)?[一二三四五六日月火水木金土]曜?日?)? ?{_ANY_CLOCK}",
    r"20[0-9]{2}(?:0[1-9]|1[0-2])[0-3][0-9](?:[T_-]?[0-2][0-9][0-5][0-9][0-5][0-9](?![0-9]|:[0-9])"
    rf"(?:[.,][0-9]{{1,9}})?|[T _:-]{_ANY_CLOCK})",
    # A year of two digits, or none.
    rf"(?:(?:{WEEKDAY}, )?[0-9]{{2}}-{_MONTH}-[0-9]{{2}}"
    rf"|{_MONTH} {_DAY}|{_DAY}[- ]{_MONTH}|(?:0[1-9]|1[0-2])-[0-3][0-9]"
    r"|[0-9]{1,2}月 ?[0-9]{1,2}日?"
    rf") {_ANY_CLOCK}",
    rf"(?<=[IWEF])[0-9]{{4}} {CLOCK}\.[0-9]{{6}}",
)
OTHER = "|".join(_FORMS)
#: A stamp with a date, of any form.
DATED = rf"(?:{DATE}[ T_]{CLOCK}{FRACTION}(?!:| ?[AaPp][Mm]\b)|{OTHER})"

_WHOLE = "|".join(form.replace("(?<=[IWEF])", "") for form in _FORMS)
_SYSLOG = re.compile(rf"[A-Z][a-z]{{2}} [ 0-9][0-9] {CLOCK}(?:\.[0-9]+)?")
_ISO = re.compile(rf"{DATE}[ T_]{CLOCK}{FRACTION}")
_COMPACT = re.compile(r"[0-9]{8}(?P<join>[T_-]?)[0-9]{6}(?P<fraction>[.,][0-9]+)?")
_PART = re.compile(
    r"(?P<clock>[0-9]{1,2}:[0-9]{2}:[0-9]{2})(?!:[0-9]{2}(?![0-9]))"
    r"(?:(?P<point>[.,]|:(?=[0-9]{3}))(?P<fraction>[0-9]+))?"
    rf"|(?P<half>[AaPp][Mm]\b)|(?P<month>{_MONTH})(?![A-Za-z])|(?P<weekday>{WEEKDAY})"
    r"|(?P<number>[0-9]+)|(?P<other>.)"
)
#: Of a stamp without a year: before its form, where one will be put before the stamp.
_YEARLESS = "%Y "


def clock_of(stamp: str) -> str:
    """Name the way a stamp is written: clock, date, epoch, fraction, syslog, or a format.

    A format is one of Polars' for the stamp with a point for its first comma; with `%Y ` before
    it where the stamp has no year.
    """
    if _SYSLOG.fullmatch(stamp):
        return "syslog"
    if _ISO.fullmatch(stamp):
        return "date" if len(stamp) == 19 and stamp[4] == "-" and stamp[10] == " " else "fraction"
    if compact := _COMPACT.fullmatch(stamp):
        return f"%Y%m%d{compact['join']}%H%M%S" + ("%.f" if compact["fraction"] else "")
    if re.fullmatch(_WHOLE, stamp):
        return _form_of(stamp)
    return "clock" if ":" in stamp else "epoch"


def _form_of(stamp: str) -> str:
    numbers = iter(_numbers_of(stamp))
    half = re.search(r"[AaPp][Mm]\b", stamp) is not None
    form, comma = "", False
    for part in _PART.finditer(stamp):
        if part["clock"]:
            form += "%I:%M:%S" if half else "%H:%M:%S"
            if part["fraction"]:
                plain = part["point"] == "." or (part["point"] == "," and not comma)
                form += "%.f" if plain else f"{part['point']}%{len(part['fraction'])}f"
        elif part["half"]:
            form += "%p"
        elif part["month"]:
            form += "%B"
        elif part["weekday"]:
            form += "%A"
        elif part["number"]:
            form += next(numbers)
        elif part["other"] == "," and not comma:
            form, comma = form + ".", True
        else:
            form += part["other"]
    if "%Y" not in form and "%y" not in form:
        return _YEARLESS + form
    return form.replace("%Y ", "%Y\t", 1) if form.startswith(_YEARLESS) else form


def _numbers_of(stamp: str) -> tuple[str, ...]:
    """Say what the numbers of a date are, in their order."""
    found = [part for part in _PART.finditer(stamp) if part["number"]]
    sizes = [len(part["number"]) for part in found]
    named = any(part["month"] for part in _PART.finditer(stamp))
    if sizes == [8]:
        return ("%Y%m%d",)
    if sizes == [4] and not named:
        return ("%m%d",)
    if named:
        if len(sizes) == 1:
            return ("%d",)
        return ("%Y", "%d") if sizes[0] == 4 else ("%d", "%Y" if sizes[1] == 4 else "%y")
    if len(sizes) == 2:
        return ("%m", "%d")
    if sizes[0] == 4:
        return ("%Y", "%m", "%d")
    return ("%m", "%d", "%Y") if "/" in stamp else ("%d", "%m", "%Y")


def like(stamp: str) -> str:
    """Return a pattern for stamps written like `stamp`, in Python's and Polars' syntax."""
    clock = clock_of(stamp)
    if clock.startswith("%"):
        return _like_form(stamp, clock)
    head, point, _ = re.match(r"([^.,]*)([.,]?)(.*)", stamp).groups()  # type: ignore[union-attr]
    head = re.sub(r"[0-9]+", lambda m: f"[0-9]{{{len(m[0])}}}", head.replace("  ", " +"))
    head = re.sub(r"^[A-Z][a-z]{2} \+?", "[A-Z][a-z][a-z] +", head)
    head = re.sub(r"^(\[A-Z\]\[a-z\]\[a-z\] \+\[0-9\])\{[12]\} ", r"\1+ ", head)
    return head + (f"[{point}][0-9]+" if point else "")


def _like_form(stamp: str, form: str) -> str:
    fixed = re.search(r"%[0-9]f", form) is not None
    pattern = ""
    for part in _PART.finditer(stamp):
        if part["clock"]:
            pattern += "[0-9]{1,2}:[0-9]{2}:[0-9]{2}"
            if part["fraction"]:
                digits = f"{{{len(part['fraction'])}}}" if fixed else "+"
                pattern += f"[{part['point']}][0-9]{digits}"
        elif part["half"]:
            pattern += "[AaPp][Mm]"
        elif part["month"] or part["weekday"]:
            pattern += "[A-Za-z]+"
        elif part["number"]:
            n = len(part["number"])
            pattern += "[0-9]{1,2}" if n <= 2 else f"[0-9]{{{n}}}"
        elif part["other"] == " ":
            pattern += "" if pattern.endswith(" +") else " +"
        else:
            pattern += re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", part["other"])
    return pattern


def moment_of(stamp: str, year: str) -> datetime | None:
    """Return what a stamp says, to the second; None where it says no day.

    Args:
        stamp: as printed.
        year: of a stamp that has none.
    """
    clock = clock_of(stamp)
    if clock == "syslog":
        clock = "%Y %B %d %H:%M:%S"
    if clock == "epoch":
        return datetime(1970, 1, 1) + timedelta(seconds=int(stamp[:10]))
    try:
        if clock in ("date", "fraction"):
            return datetime.fromisoformat(stamp[:19].replace("/", "-").replace("_", "T"))
        if not clock.startswith("%"):
            return None
        if clock.startswith(_YEARLESS):
            stamp = f"{year} {stamp}"
        stamp = re.sub(r"(:[0-9]{2}:[0-9]{2})(?:[.,][0-9]+|:[0-9]{3})", r"\1", stamp)
        stamp = re.sub(r"^([0-9]{8}[T_-]?[0-9]{6})[.,][0-9]+", r"\1", stamp)
        form = re.sub(r"%\.f|[.,:]%[0-9]f", "", clock)
        month = re.search(_MONTH, stamp)
        form = form.replace("%B", "%b" if month and len(month[0]) == 3 else "%B")
        weekday = re.search(WEEKDAY, stamp)
        form = form.replace("%A", "%a" if weekday and len(weekday[0]) == 3 else "%A")
        return datetime.strptime(stamp.replace(",", ".", 1), form)
    except ValueError:
        return None


def zone_within(stamp: str) -> str | None:
    """Return the zone that a stamp itself tells: of an epoch, and before the year of a date."""
    is_utc = re.search(r" (?:UTC|GMT) [0-9]{4}$", stamp) or clock_of(stamp) == "epoch"
    return "UTC" if is_utc else None


def minutes_of(zone: str) -> int:
    """Return how far a zone as printed, one that `ZONE` matches, is ahead of UTC."""
    ahead = re.search(r"([+-])([0-9]{1,2}):?([0-9]{2})?", zone)
    if ahead is None:
        return 0
    minutes = int(ahead[2]) * 60 + int(ahead[3] or 0)
    return -minutes if ahead[1] == "-" else minutes
