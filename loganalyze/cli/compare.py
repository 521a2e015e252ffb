"""`loganalyze compare`: what a change did."""

from __future__ import annotations

import re
from typing import Unpack

import click

from loganalyze.cli import _outputs, _shared


def _share(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Return `regression=5%` as 0.05."""
    if value is None:
        return None
    match = re.fullmatch(r"regression=(\d+(?:\.\d+)?)\s*%?", value.strip())
    if not match or not 0 < float(match[1]) < 100:
        raise click.BadParameter(f"{value!r} is not like regression=5%")
    return float(match[1]) / 100


@click.command(
    epilog=_shared.examples(
        "loganalyze compare before.log after.log",
        "loganalyze compare server.log#1 server.log#2",
        "loganalyze compare before.log after.log -o compare.html --markdown compare.md",
        "loganalyze compare main.log branch.log --fail-on regression=5%",
    )
)
@click.argument("before", metavar="BEFORE", type=click.Path(allow_dash=True))
@click.argument(
    "after", nargs=-1, required=True, metavar="AFTER...", type=click.Path(allow_dash=True)
)
@click.option("-o", "--output", metavar="FILE.html|-", help="Write the page.")
@click.option("--markdown", metavar="FILE|-", help="Write a block to paste into a ticket.")
@click.option("--json", "as_json", metavar="FILE|-", help="Write the comparison as JSON.")
@_shared.force_option
@click.option(
    "--fail-on",
    metavar="regression=5%",
    callback=_share,
    help="Exit with status 1 if throughput at equal load, or the rate per request, is shown to "
    "be worse by this much; what is not comparable never fails.",
)
@_shared.analysis_options
@click.pass_context
def compare(
    ctx: click.Context,
    before: str,
    after: tuple[str, ...],
    output: str | None,
    markdown: str | None,
    as_json: str | None,
    force: bool,
    fail_on: float | None,
    **choices: Unpack[_shared.Choices],
) -> None:
    """Say what was changed between runs of a server, and what it did.

    BEFORE and AFTER are logs, or sessions of one log (server.log#1). Only the settled time of
    each run is compared, without warm-up, drain and idle time, and each measure at equal load.
    Options that choose a part of a log act on every run: --since -30m is the last half hour
    of each.
    """
    names = (before, *after)
    logs = [re.sub(r"#\d+$", "", name) for name in names]
    targets = (output, markdown, as_json)
    _outputs.check_outputs(targets, [*names, *logs], force)

    from loganalyze import compare as library

    with _shared.progress(logs) as tick:
        found = library.compare(
            *names,
            overrides=_shared.read_config(choices["config"]) | choices["settings"],
            profile=choices["profile"],
            filters=_shared.filters(choices),
            on_progress=tick,
            command=ctx.obj or "",
            redact=choices["redact"],
        )
    _shared.print_unreadable(found.unreadable)

    from loganalyze.report import compare_html, compare_json, compare_markdown, compare_text

    forms = (compare_html.render, compare_markdown.render, compare_json.dumps)
    pairs = zip(targets, forms, strict=True)
    _outputs.write_all([(target, render(found)) for target, render in pairs if target])
    text = compare_text.render(found, color=_shared.use_color(), width=_shared.width())
    if _outputs.STDIO in targets:  # the form is alone there
        _shared.to_stderr(f"{text}\n")
    else:
        _outputs.to_stdout(text)
    if fail_on is not None:
        worse = library.regressions(found, fail_on)
        for pair, one in worse:
            _shared.print_error(
                f"{pair.after.name}: regression: {one.label} ×{one.effect.mid:.3f}"  # type: ignore[union-attr]
            )
        for pair in found.pairs:
            if pair.differences[0].verdict == "not comparable":
                _shared.print_error(
                    f"{pair.after.name}: cannot tell whether throughput regressed: "
                    f"{pair.differences[0].reason}"
                )
        if worse:
            ctx.exit(_shared.FAIL_ON_REACHED)
    ctx.exit(_shared.SOME_UNREADABLE if found.unreadable else 0)
