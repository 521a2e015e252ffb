"""`loganalyze report`: one HTML file for the ticket, and its other forms."""

from __future__ import annotations

import importlib.util
import os
from typing import Unpack

import click

from loganalyze.cli import _outputs, _shared
from loganalyze.errors import UsageError


@click.command(
    epilog=_shared.examples(
        "loganalyze report server.log",
        "loganalyze report server.log -o reports/tuesday.html --force",
        "loganalyze report server.log -o page.html --markdown ticket.md --json report.json",
        "kubectl logs sglang-0 | loganalyze report - --markdown -",
    )
)
@_shared.log_argument
@click.option("-o", "--output", metavar="FILE|-", help="Write the HTML page here.")
@click.option("--markdown", metavar="FILE|-", help="Write a block to paste into a ticket.")
@click.option("--json", "as_json", metavar="FILE|-", help="Write the report as JSON.")
@click.option(
    "--figure",
    metavar="FILE.svg|FILE.png|-",
    help="Write the main timeline as a picture.",
)
@_shared.force_option
@_shared.fail_on_option
@_shared.analysis_options
@click.pass_context
def report(
    ctx: click.Context,
    logs: tuple[str, ...],
    output: str | None,
    markdown: str | None,
    as_json: str | None,
    figure: str | None,
    force: bool,
    fail_on: str | None,
    **choices: Unpack[_shared.Choices],
) -> None:
    """Write the report to attach to a ticket, and print its verdict.

    The page is one file that needs no network. Where no output is named, the page and the
    Markdown block go into the present folder, named after the log.
    """
    if not (output or markdown or as_json or figure):
        stem = _stem(logs[0])
        output, markdown = f"{stem}.report.html", f"{stem}.report.md"
    targets = (output, markdown, as_json, figure)
    _outputs.check_outputs(targets, logs, force)
    _check_figure(figure)
    found = _shared.analyze(ctx, logs, **choices)

    from loganalyze.report import to_html, to_json, to_markdown, to_svg, to_text

    png = (figure or "").lower().endswith(".png")
    draw = to_svg.render_png if png else to_svg.render
    forms = (to_html.render, to_markdown.render, to_json.dumps, draw)
    pairs = zip(targets, forms, strict=True)
    _outputs.write_all([(target, render(found)) for target, render in pairs if target])
    color, width = _shared.use_color(), _shared.width()
    if _outputs.STDIO in targets:  # the form is alone there, and says the rest
        _shared.to_stderr(to_text.render_verdict(found, color=color, width=width))
    else:
        _outputs.to_stdout(to_text.render(found, color=color, width=width))
    ctx.exit(_shared.exit_code(found, fail_on))


def _check_figure(figure: str | None) -> None:
    """Refuse, before any reading, a picture that cannot be drawn here."""
    ending = os.path.splitext(figure or "")[1].lower()
    if ending not in ("", ".svg", ".png"):
        raise UsageError(
            f"--figure: {figure} ends in neither .svg nor .png",
            hint="those two kinds of pictures can be written",
        )
    if ending == ".png" and importlib.util.find_spec("resvg_py") is None:
        raise UsageError(
            "--figure: a PNG needs the package resvg-py, which is not installed",
            hint="pip install 'loganalyze[png]', or name a file that ends in .svg",
        )


def _stem(log: str) -> str:
    """Return the log's name without its folder and ending."""
    name = os.path.basename(log) if log != _outputs.STDIO else "stdin"
    return name.removesuffix(".gz").removesuffix(".log") or "server"
