"""What is asked of a plan: what is known, what to change, and what work is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from loganalyze.capacity import kv_bytes
from loganalyze.capacity.server import Given
from loganalyze.errors import UsageError


@dataclass(frozen=True, slots=True)
class Changes:
    """A set of changes; None leaves a thing as it is. The names are those of `--what-if`.

    `hicache_size` is SGLang's own (1e9 bytes per rank), `host_mem_gib` a host's whole share;
    `pool_gib` is memory given to the pool on each rank, where the fraction that does it cannot
    be told.
    """

    mem_fraction: float | None = None
    kv_dtype: str | None = None
    dp_attention: int | None = None
    dcp: int | None = None
    max_running_requests: int | None = None
    replicas: int | None = None
    hicache_size: float | None = None
    host_mem_gib: float | None = None
    pool_gib: float | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """What is changed."""
        return tuple(f.name for f in fields(self) if getattr(self, f.name) is not None)


#: Other spellings of what can be changed: SGLang's own flags.
_SPELLED = {
    "mem_fraction_static": "mem_fraction",
    "kv_cache_dtype": "kv_dtype",
    "dp_size": "dp_attention",
    "dcp_size": "dcp",
}


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked.

    Attributes:
        given: what the caller says about the server.
        target_concurrency: requests that should run at the same time.
        what_if: sets of changes to look at beside the usual levers.
        remaining_requests, remaining_tokens: work that is left, for the time it takes.
        bandwidth: peak memory bandwidth of the GPU in bytes/s.
        session: which session of the log; None for the one that says most.
    """

    given: Given = field(default_factory=Given)
    target_concurrency: int | None = None
    what_if: Sequence[Changes] = ()
    remaining_requests: int | None = None
    remaining_tokens: int | None = None
    bandwidth: float | None = None
    session: int | None = None


def wish(
    config: str | None,
    what_if: Sequence[str] = (),
    gpu_bandwidth: float | None = None,
    **options: Any,  # noqa: ANN401 - the fields of Wish and Given
) -> Wish:
    """Return what is asked from what was typed.

    Args:
        config: path of the model's config.json.
        what_if: texts for `read_changes`.
        gpu_bandwidth: peak memory bandwidth, GB/s.
        options: other fields of `Wish` and of `Given`.

    Raises:
        InputError: the config cannot be read.
        UsageError: a change that is not known.
    """
    names = {f.name for f in fields(Given)}
    given = {name: value for name, value in options.items() if name in names}
    return Wish(
        given=Given(config=kv_bytes.read(config) if config is not None else None, **given),
        what_if=tuple(read_changes(text) for text in what_if),
        bandwidth=gpu_bandwidth * 1e9 if gpu_bandwidth else None,
        **{name: value for name, value in options.items() if name not in names},
    )


def read_changes(text: str) -> Changes:
    """Read `mem-fraction=0.93,kv-dtype=fp8_e4m3`.

    Raises:
        UsageError: an unknown name, or a value that is none.
    """
    known = {f.name: f for f in fields(Changes)}
    found: dict[str, Any] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = item.partition("=")
        key = name.strip().lstrip("-").replace("-", "_").lower()
        key = _SPELLED.get(key, key)
        if key not in known:
            names = ", ".join(n.replace("_", "-") for n in known)
            raise UsageError(f"--what-if does not know {name.strip()!r}", hint=f"it knows {names}")
        found[key] = _read_value(key, value.strip())
    if not found:
        raise UsageError("--what-if names no change", hint="such as mem-fraction=0.93")
    return Changes(**found)


#: Changes of host memory alone: they give no running request anything.
HOST = ("hicache_size", "host_mem_gib")

_FLOATS = ("mem_fraction", "hicache_size", "host_mem_gib", "pool_gib")


def _read_value(key: str, value: str) -> float | int | str:
    if key == "kv_dtype":
        return value
    number: float | int
    try:
        number = float(value) if key in _FLOATS else int(value)
    except ValueError:
        raise UsageError(f"--what-if {key.replace('_', '-')}={value}: not a number") from None
    if not 0 < number < (1 if key == "mem_fraction" else 1e12):
        raise UsageError(
            f"--what-if {key.replace('_', '-')}={value}: out of range",
            hint="a memory fraction lies between 0 and 1" if key == "mem_fraction" else "",
        )
    return number
