"""How a moment is written: the dates and clocks of SGLang, of loggers and of log shippers.

A stamp is found by a pattern, and told by its text how it is to be read: `clock_of` names a form
that Polars reads, `like` gives a pattern for stamps that are written in the same way. What day
and month of 03/04/2026 are cannot be told, but for a clock of twelve hours; such a date is
passed over. Weekdays are English; months and halves of the day may be of some other languages.
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

#: Names of months in other languages than English: German, French, Spanish, Portuguese.
_MONTHS = {
    "Jan": "januar|janvier|janv|enero|ene|janeiro",
    "Feb": "februar|février|fevrier|févr|fevr|febrero|fevereiro|fev",
    "Mar": "märz|maerz|mär|mrz|mars|marzo|março|marco",
    "Apr": "avril|avr|abril|abr",
    "May": "mai|mayo|maio",
    "Jun": "juni|juin|junio|junho",
    "Jul": "juli|juillet|juil|julio|julho",
    "Aug": "août|aout|agosto|ago",
    "Sep": "septembre|sept|septiembre|setiembre|setembro|set",
    "Oct": "oktober|okt|octobre|octubre|outubro|out",
    "Nov": "novembre|noviembre|novembro",
    "Dec": "dezember|dez|décembre|decembre|déc|diciembre|dic|dezembro",
}
#: What the forms of `clock_of` have as `%b` and `%P`, and the same in English; patterns in
#: Python's and Polars' syntax.
TRANSLATIONS = (
    *((rf"(?i)\b(?:{names})\b", english) for english, names in _MONTHS.items()),
    ("上午|午前|오전", "AM"),
    ("下午|午後|오후", "PM"),
)
_TRANSLATED = re.compile("|".join(name for name, _ in TRANSLATIONS).replace("(?i)", ""), re.I)
#: A month's name beside a year: any word, for it is told later. A list of names would take long
#: to compile, as often as it is used.
_MONTH = r"[^\W\d_]{3,10}\.?"
#: The same without a year: a word that begins like a month's name, or is cut short with a point.
_BARE_MONTH = (
    r"(?:[JFMASOND][abceégiknoprucvä][nbrylgptvcziûoe][^\W\d_]{0,7}\.?|[^\W\d_]{3,5}\."
    r"|JAN|FEB|MAR|APR|MAY|JUN|JUL|AUG|SEP|OCT|NOV|DEC)"
)
WEEKDAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]{0,6}"
_DAY = r"(?:(?: ?[1-9]|[0-3][0-9])\.?)"
_HALF = r" ?[AaPp][Mm]"
_HALF_FIRST = r"(?:上午|下午|午前|午後|오전|오후)"
_ANY_CLOCK = (
    rf"(?:{_HALF_FIRST} ?)?[0-9]{{1,2}}:[0-9]{{2}}:[0-9]{{2}}(?:[.,][0-9]{{1,9}}|:[0-9]{{3}})?"
    rf"(?:{_HALF}\b)?"
)
#: A clock of twelve hours, without a date.
HALF_CLOCK = (
    rf"(?:{_HALF_FIRST} ?[0-9]{{1,2}}:[0-9]{{2}}:[0-9]{{2}}(?:[.,][0-9]{{1,9}})?"
    rf"|[0-9]{{1,2}}:[0-9]{{2}}:[0-9]{{2}}(?:[.,][0-9]{{1,9}})?{_HALF}\b)"
)
#: Between a date and its clock.
_JOIN = r"(?:,? {1,2}|[T:_-]|,| (?:at|@|-|à|às|um) )"
#: Date and clock of other forms than ISO's. What forms share is written once: patterns of a few
#: kB take as long to compile as a small log to read.
_FORMS = (
    r"(?:"
    rf"[0-9]{{4}}[-/ ]{_MONTH}[-/ ]{_DAY}"
    rf"|(?:{WEEKDAY},? )?"
    rf"(?:{_MONTH} {_DAY},? [0-9]{{4}}"
    rf"|{_DAY}[-/ ](?:de )?{_MONTH}[-/ ](?:de )?[0-9]{{4}})"
    r"|[0-9]{2}\.[0-9]{2}\.[0-9]{4}|[0-9]{4}\.[0-9]{2}\.[0-9]{2}"
    r"|[0-9]{4}(?:-[0-9]{1,2}-|/[0-9]{1,2}/)[0-9]{1,2}"
    rf"){_JOIN}{_ANY_CLOCK}",
    rf"(?:{WEEKDAY} )?{_MONTH} {_DAY} {_ANY_CLOCK}(?: [A-Z]{{3,4}})? [0-9]{{4}}(?![-/:.]?[0-9])",
    rf"[0-9]{{1,2}}/[0-9]{{1,2}}/[0-9]{{4}},? {{1,2}}{_ANY_CLOCK}(?<=[AaPp][Mm])",
    r"[0-9]{4}(?:年|년) ?[0-9]{1,2}(?:月|월) ?[0-9]{1,2}(?:日|일)"
    rf"(?: ?\(?(?:星期|周|週)?[一二三四五六日月火水木金土]曜?日?\)?)? ?{_ANY_CLOCK}",
    r"20[0-9]{2}(?:0[1-9]|1[0-2])[0-3][0-9](?:[T_-]?[0-2][0-9][0-5][0-9][0-5][0-9](?![0-9]|:[0-9])"
    rf"(?:[.,][0-9]{{1,9}})?|[T _:-]{_ANY_CLOCK})",
    # A year of two digits, or none.
    rf"(?:(?:{WEEKDAY}, )?[0-9]{{2}}-{_MONTH}-[0-9]{{2}}"
    rf"|{_BARE_MONTH} {_DAY}|{_DAY}[- ]{_BARE_MONTH}|(?:0[1-9]|1[0-2])-[0-3][0-9]"
    r"|[0-9]{1,2}月 ?[0-9]{1,2}日?"
    rf") {_ANY_CLOCK}",
    rf"(?<=[IWEF])[0-9]{{4}} {CLOCK}\.[0-9]{{6}}",
)
OTHER = "|".join(_FORMS)
#: A stamp with a date, of any form.
DATED = rf"(?:{DATE}[ T_]{CLOCK}{FRACTION}(?!:| ?[AaPp][Mm]\b)|{OTHER})"

_WHOLE = "|".join(form.replace("(?<=[IWEF])", "") for form in _FORMS)
_ENGLISH = re.compile(
    r"(?i:(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?"
    r"|Sep(?:tember)?|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?))"
)
_SYSLOG = re.compile(rf"(?P<month>[A-Z][a-z]{{2}}) [ 0-9][0-9] {CLOCK}(?:\.[0-9]+)?")
_ISO = re.compile(rf"{DATE}[ T_]{CLOCK}{FRACTION}")
_COMPACT = re.compile(r"[0-9]{8}(?P<join>[T_-]?)[0-9]{6}(?P<fraction>[.,][0-9]+)?")
_PART = re.compile(
    r"(?P<clock>[0-9]{1,2}:[0-9]{2}:[0-9]{2})(?!:[0-9]{2}(?![0-9]))"
    r"(?:(?P<point>[.,]|:(?=[0-9]{3}))(?P<fraction>[0-9]+))?"
    rf"|(?P<half>[AaPp][Mm]\b|{_HALF_FIRST})|(?P<weekday>{WEEKDAY}(?!\w))"
    r"|(?P<month>(?i:jan|ene|f[eé][bv]|m[aä]r|mrz|maerz|a[bpv]r|ma[iy]|ju[inl]|aug|ago|ao[uû]t|sep"
    r"|set|o[ck]t|out|nov|d[eé][cz]|dic)[^\W\d_]{0,7})(?!\w)"
    r"|(?P<number>[0-9]+)|(?P<other>.)"
)
#: Of a stamp without a year: before its form, where one will be put before the stamp.
_YEARLESS = "%Y "


def clock_of(stamp: str) -> str:
    """Name the way a stamp is written: clock, date, epoch, fraction, syslog, or a format.

    A format is one of Polars' for the stamp with a point for its first comma; with `%Y ` before
    it where the stamp has a day, but no year. `%b` and `%P` stand for words of another language
    than English (`TRANSLATIONS`).
    """
    if (syslog := _SYSLOG.fullmatch(stamp)) and _ENGLISH.fullmatch(syslog["month"]):
        return "syslog"
    if _ISO.fullmatch(stamp):
        return "date" if len(stamp) == 19 and stamp[4] == "-" and stamp[10] == " " else "fraction"
    if compact := _COMPACT.fullmatch(stamp):
        return f"%Y%m%d{compact['join']}%H%M%S" + ("%.f" if compact["fraction"] else "")
    if re.fullmatch(_WHOLE, stamp) or re.fullmatch(HALF_CLOCK, stamp):
        return _form_of(stamp)
    return "clock" if ":" in stamp else "epoch"


def _form_of(stamp: str) -> str:
    numbers = iter(_numbers_of(stamp))
    half = any(part["half"] for part in _PART.finditer(stamp))
    form, comma = "", False
    for part in _PART.finditer(stamp):
        if part["clock"]:
            form += "%I:%M:%S" if half else "%H:%M:%S"
            if part["fraction"]:
                plain = part["point"] == "." or (part["point"] == "," and not comma)
                form += "%.f" if plain else f"{part['point']}%{len(part['fraction'])}f"
        elif part["half"]:
            form += "%P" if _TRANSLATED.fullmatch(part["half"]) else "%p"
        elif part["month"]:
            form += "%b" if _TRANSLATED.fullmatch(part["month"]) else "%B"
        elif part["weekday"]:
            form += "%A"
        elif part["number"]:
            form += next(numbers, part["number"])
        elif part["other"] == "," and not comma:
            form, comma = form + ".", True
        else:
            form += part["other"]
    if "%d" not in form:
        return form
    if "%Y" not in form and "%y" not in form:
        return _YEARLESS + form
    return form.replace("%Y ", "%Y\t", 1) if form.startswith(_YEARLESS) else form


def _numbers_of(stamp: str) -> tuple[str, ...]:
    """Say what the numbers of a date are, in their order."""
    found = [part for part in _PART.finditer(stamp) if part["number"]]
    sizes = [len(part["number"]) for part in found]
    named = any(part["month"] for part in _PART.finditer(stamp))
    if not sizes:
        return ()
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


def has_date(clock: str) -> bool:
    """Whether stamps written in the way that `clock_of` names say a day."""
    return clock != "clock" and not (clock.startswith("%") and "%d" not in clock)


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
            pattern += "[AaPp][Mm]" if part["half"].isascii() else re.escape(part["half"])
        elif part["month"]:
            pattern += "[^ 0-9./:-]+"
        elif part["weekday"]:
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
        if not clock.startswith("%") or not has_date(clock):
            return None
        for words, english in TRANSLATIONS if "%b" in clock or "%P" in clock else ():
            stamp = re.sub(words, english, stamp)
        if clock.startswith(_YEARLESS):
            stamp = f"{year} {stamp}"
        stamp = re.sub(r"(:[0-9]{2}:[0-9]{2})(?:[.,][0-9]+|:[0-9]{3})", r"\1", stamp)
        stamp = re.sub(r"^([0-9]{8}[T_-]?[0-9]{6})[.,][0-9]+", r"\1", stamp)
        form = re.sub(r"%\.f|[.,:]%[0-9]f", "", clock)
        month = next((part["month"] for part in _PART.finditer(stamp) if part["month"]), "")
        form = form.replace("%B", "%b" if len(month) == 3 else "%B")
        form = form.replace("%P", "%p")
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
