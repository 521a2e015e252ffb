"""Read the `server_args=` line: `ServerArgs(name=value, ...)` or `{'name': value, ...}`.

The text is a Python repr from a log, so it is parsed and never evaluated: literals become
values, anything else (`LoRARef(...)`, `<Backend.FA3: 'fa3'>`) stays as its text.

Why: ast.literal_eval alone fails on the whole line as soon as one field is not a literal,
and several releases print such fields.
"""

from __future__ import annotations

import ast
import re
import warnings

#: A repr of more than this is cut: the longest real one (0.5.23) has 18 kB.
MAX_CHARS = 262_144

_TOKEN = re.compile(
    r"""'(?:[^'\\]|\\.)*'?      # a string, or the rest of one that was cut
      | "(?:[^"\\]|\\.)*"?
      | [()\[\]{}<>,=:]
      | [^'"()\[\]{}<>,=:]+
    """,
    re.VERBOSE | re.DOTALL,
)
#: Half of a surrogate pair: a text that holds it can be written nowhere. A backslash that is
#: itself escaped begins no escape.
_HALF = re.compile(r"(?<!\\)(?:\\\\)*\\[uU](?:0000)?[dD][89a-fA-F]")
_OPEN = {"(": ")", "[": "]", "{": "}", "<": ">"}


def parse(text: str) -> dict[str, object]:
    """Return the arguments by name.

    Args:
        text: what follows `server_args=`; either form, possibly cut short.

    Returns:
        name -> value; values that are not Python literals stay text. A field that was cut
        by the end of the line is left out. Empty for text in neither form.
    """
    text = text[:MAX_CHARS].strip()
    repr_form = re.match(r"[A-Za-z_][\w.]*\(", text)
    if repr_form:
        body, separator = text[repr_form.end() :], "="
    elif text.startswith("{"):
        body, separator = text[1:], ":"
    else:
        return {}
    args: dict[str, object] = {}
    with warnings.catch_warnings():  # of the compiler, about backslashes in a log's text
        warnings.simplefilter("ignore")
        for name, value in _fields(body, separator):
            key = name.strip().strip("'\"")
            if re.fullmatch(r"\w+", key):
                args[key] = _literal(value.strip())
    return args


def _fields(body: str, separator: str) -> list[tuple[str, str]]:
    """Split at commas and at the first separator, both outside strings and brackets."""
    fields: list[tuple[str, str]] = []
    closing: list[str] = []
    name: str | None = None
    part: list[str] = []
    for token in _TOKEN.findall(body):
        if closing:
            part.append(token)
            if token == closing[-1]:
                closing.pop()
            elif token in _OPEN:
                closing.append(_OPEN[token])
        elif token in _OPEN:
            closing.append(_OPEN[token])
            part.append(token)
        elif token in (")", "}"):
            if name is not None:
                fields.append((name, "".join(part)))
            return fields
        elif token == "," and name is not None:
            fields.append((name, "".join(part)))
            name, part = None, []
        elif token == separator and name is None:
            name, part = "".join(part), []
        else:
            part.append(token)
    return fields


def _literal(text: str) -> object:
    """Return the Python literal, or the text itself where it is none, or no size of anything."""
    if _HALF.search(text):
        return text
    try:
        value = ast.literal_eval(text)
        repr(value)  # raises where a number has more digits than Python prints
        return text if isinstance(value, int) and abs(value) >= 1 << 63 else value
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
