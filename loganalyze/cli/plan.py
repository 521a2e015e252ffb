"""`loganalyze plan`: what would help, by how much, and what it costs."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

import click

from loganalyze.cli import _outputs, _shared

#: More of anything is a slip of the finger, and no longer to be counted in a float.
_MOST = 10**12


class _Count(click.IntRange):
    """A whole number within limits, which are said in short."""

    def _describe_range(self) -> str:
        return super()._describe_range().replace(str(_MOST), "1e12")


class _Amount(click.FloatRange):
    """A number within limits, which are said in short; click takes `nan` for one."""

    def convert(
        self,
        value: Any,  # noqa: ANN401 (click's own)
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        """Return the number, or fail as click does."""
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number

    def _describe_range(self) -> str:
        return super()._describe_range().replace(str(_MOST), "1e12")


_AMOUNT = _Amount(0, _MOST, min_open=True)
_COUNT = _Count(1, _MOST)


@click.command(
    epilog=_shared.examples(
        "loganalyze plan --log server.log",
        "loganalyze plan --log server.log --model-config config.json --explain",
        "loganalyze plan --log server.log --what-if mem-fraction=0.93,kv-dtype=fp8_e4m3",
        "loganalyze plan --log server.log --remaining-requests 13340",
        "loganalyze plan --log server.log --target-concurrency 100 --json",
        "loganalyze plan --model-config config.json --tp 8 --gpu-mem-gib 94 --weights-gib 72",
    )
)
@click.option(
    "--log",
    "logs",
    multiple=True,
    metavar="LOG",
    type=click.Path(allow_dash=True),
    help="A log of the server; a second one, with another memory fraction, helps.",
)
@click.option("--session", type=int, help="Which session of the log (default: the fullest).")
@click.option(
    "--model-config",
    "config",
    metavar="FILE",
    type=click.Path(),
    help="The model's Hugging Face config.json.",
)
@click.option(
    "--gpu-mem-gib",
    type=_AMOUNT,
    help="Memory of one GPU, free before the weights are loaded.",
)
@click.option(
    "--weights-gib",
    type=_AMOUNT,
    help="What the weights take on one GPU (without a log).",
)
@click.option(
    "--mem-fraction",
    type=_Amount(0, 1, min_open=True, max_open=True),
    help="--mem-fraction-static as it is now.",
)
@click.option("--tp", type=_COUNT, help="Tensor parallel size.")
@click.option("--pp", type=_COUNT, help="Pipeline parallel size.")
@click.option("--dcp", type=_COUNT, help="Decode context parallel size.")
@click.option("--dp-attention", type=_COUNT, help="DP attention ranks.")
@click.option("--kv-dtype", metavar="DTYPE", help="--kv-cache-dtype as it is now.")
@click.option(
    "--kv-layout",
    type=click.Choice(["trtllm", "flashmla"]),
    help="How a sparse-attention (DSA) model stores fp8 KV: raw, or with scales.",
)
@click.option(
    "--draft-layers", type=click.IntRange(0, 1000), help="Layers of a speculative draft model."
)
@click.option("--page-size", type=_COUNT, help="Tokens of one KV page.")
@click.option(
    "--mamba-ssm-dtype", "ssm_dtype", metavar="DTYPE", help="Element type of Mamba states."
)
@click.option(
    "--gpu-bandwidth",
    type=_AMOUNT,
    metavar="GB/S",
    help="Peak memory bandwidth of the GPU; narrows what long contexts may cost.",
)
@click.option(
    "--tokens-per-request",
    "tokens_per_req",
    type=_AMOUNT,
    help="KV tokens that a running request holds (default: measured).",
)
@click.option(
    "--target-concurrency",
    type=_COUNT,
    help="Requests that should run at the same time.",
)
@click.option(
    "--what-if",
    "what_if",
    multiple=True,
    metavar="NAME=VALUE,...",
    help="Changes to look at, each alone and together: mem-fraction, kv-dtype, "
    "dp-attention, dcp, max-running-requests, replicas, hicache-size (1e9 bytes per "
    "rank), host-mem-gib (a whole host's), pool-gib.",
)
@click.option(
    "--remaining-requests",
    type=_COUNT,
    help="Requests that are left: prints the time they take, now and after each lever.",
)
@click.option(
    "--remaining-tokens",
    type=_COUNT,
    help="Tokens that are left to generate, instead of requests.",
)
@click.option("--explain", is_flag=True, help="Print the arithmetic of every number.")
@_shared.json_option
def plan(
    logs: tuple[str, ...],
    config: str | None,
    what_if: tuple[str, ...],
    explain: bool,
    as_json: bool,
    **options: Any,  # noqa: ANN401 (named like the fields of Wish and Given)
) -> None:
    """Say what would raise the throughput, by how much, and what it costs.

    A table of levers, the most effective first: KV tokens, requests that fit, throughput with
    the range that should hold the truth nine times in ten, the flag, and the memory left.
    Works from a log, from a model's config, or from both.
    """
    from loganalyze import plan as planning
    from loganalyze.report import plan_to_text

    wish = planning.wish(config, what_if, **options)
    with _shared.progress(logs) as tick:
        data = planning.read_logs(logs, tick) if logs else []
    found = planning.make(data, wish)
    if as_json:
        _outputs.to_stdout(json.dumps(asdict(found), allow_nan=False, indent=2))
    else:
        _outputs.to_stdout(plan_to_text.render(found, explain, _shared.width()))
