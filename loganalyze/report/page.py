"""What every page is made of: templates, styles, scripts, and the policy that allows only them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined


def render(template: str, **values: object) -> str:
    """Fill a template; every text is escaped."""
    return _environment().get_template(template).render(**values)


@cache
def asset(name: str) -> str:
    """Return a style sheet or script."""
    return files("loganalyze.report").joinpath("templates", name).read_text(encoding="utf-8")


def policy(styles: Sequence[str], scripts: Sequence[str] = (), *, images: bool = False) -> str:
    """Return the Content-Security-Policy of a page: it runs and loads what is named, no more.

    Args:
        styles: the style sheets in the page; the empty one allows elements without a style.
        scripts: the scripts in the page.
        images: whether the page makes pictures of its own.
    """
    parts = ["default-src 'none'", "base-uri 'none'", "form-action 'none'"]
    if images:
        parts.append("img-src data: blob:")
    parts.append(" ".join(["style-src", *map(_hash, styles)]))
    if scripts:
        parts.append(" ".join(["script-src", *map(_hash, scripts)]))
    return "; ".join(parts)


@cache
def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


@cache
def _environment() -> Environment:
    env = Environment(
        loader=PackageLoader("loganalyze.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.policies["json.dumps_kwargs"] = {"sort_keys": True, "separators": (",", ":")}
    return env
