"""Docstrings that are shown to readers, also where Python threw them away.

The texts of rules and commands stand once, in their docstrings. `python -OO` drops these when
it compiles; they are then taken from the source file.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable


def read(function: Callable[..., object]) -> str | None:
    """Return a function's docstring without its indentation.

    None where it has none, or where docstrings were dropped and there is no source file.
    """
    if function.__doc__ is not None:
        return inspect.getdoc(function)
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except OSError:
        return None
    node = ast.parse(source).body[0]
    return ast.get_docstring(node) if isinstance(node, ast.FunctionDef) else None
