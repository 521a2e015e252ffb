#!/usr/bin/env python3
"""Write the sample logs again, byte for byte: `python sample_logs/make.py`.

All but one come from the simulator in tests/sim (needs numpy, from the `dev` extra): its own
scenarios where the name is one of those, and the scenarios below. What the tool must answer
to each is written by hand in README.md beside this file.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
SIMULATOR = HERE.parent / "tests" / "sim" / "simulate.py"
SEED = 0

#: File name -> scenario of the simulator.
FROM_SCENARIO = {
    "founding_case.log": "seeds_replay",
    "crash_restart.log": "crash_restart",
    "idle_batches.log": "idle_batches",
    "healthy.log": "sample_healthy",
    "running_cap.log": "sample_running_cap",
}

#: The line that an operator pasted into a ticket on the founding day; it is real.
EXCERPT = (
    "[2026-02-24 12:03:07 TP0] Decode batch, #running-req: 35, #token: 150158, "
    "token usage: 0.94, cuda graph: True, gen throughput (token/s): 606.88, #queue-req: 115\n"
)


def load_simulator() -> ModuleType:
    """Import tests/sim/simulate.py by path and add the scenarios of this folder."""
    spec = importlib.util.spec_from_file_location("simulate", SIMULATOR)
    assert spec is not None
    assert spec.loader is not None
    simulate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(simulate)
    add_scenarios(simulate)
    return simulate


def add_scenarios(simulate: ModuleType) -> None:
    """Declare the healthy server, and the running cap that looks like KV saturation."""
    simulate.sc(
        "sample_healthy",
        "Open chat traffic at a fifth of what the server could take; nothing ever waits.",
        release=(0, 5, 12),
        duration=900,
        model="/models/GLM-4.6",
        tp=8,
        capacity=160_000,
        bytes_per_token=56_320,
        context=131_072,
        mem_fraction=0.85,
        avail_gb=9.0,
        step={"t0": 0.026, "a": 1.1e-4, "b": 2.6e-8},
        prefill={"p0": 0.018, "p1": 5.5e-5, "p2": 4e-10, "load": 1e-6},
        phases=[
            simulate.P(
                0,
                rate=1.6,
                prompt={"kind": "gamma", "mean": 800, "cv": 0.6, "lo": 50, "hi": 5000},
                out={"kind": "gamma", "mean": 420, "cv": 0.7, "lo": 16, "hi": 1800},
                max_new=2048,
            )
        ],
    )
    # 64 requests of about 2,140 tokens fill 0.92 of the pool, and 75 more wait: every sign of
    # KV saturation but one. What stops admission is always the cap, never the pool.
    simulate.sc(
        "sample_running_cap",
        "--max-running-requests 64 binds at a usage of 0.92.",
        release=(0, 5, 3),
        duration=600,
        model="/models/Qwen3-32B",
        tp=4,
        capacity=148_000,
        bytes_per_token=65_536,
        context=40_960,
        mem_fraction=0.87,
        avail_gb=8.4,
        conservativeness=0.3,
        max_running=64,
        max_running_set=True,
        step={"t0": 0.014, "a": 4e-5, "b": 3.1e-8},
        prefill={"p0": 0.006, "p1": 1.6e-5, "p2": 4e-10, "load": 1e-6},
        phases=[
            simulate.P(
                0,
                workers=140,
                spread=50,
                prompt={"kind": "uniform", "mean": 1, "lo": 1500, "hi": 1700},
                out={"kind": "uniform", "mean": 1, "lo": 1000, "hi": 1100},
                max_new=1200,
            )
        ],
    )


def make(out: Path) -> list[Path]:
    """Write every sample log into `out` and return their paths."""
    simulate = load_simulator()
    out.mkdir(parents=True, exist_ok=True)
    written = []
    with tempfile.TemporaryDirectory() as scratch:
        for name, scenario in FROM_SCENARIO.items():
            config = {k: v for k, v in simulate.SC[scenario].items() if k != "desc"}
            simulate.Sim(scenario, config, SEED, scratch).run()
            written.append(out / name)
            written[-1].write_bytes((Path(scratch) / f"{scenario}.log").read_bytes())
    written.append(out / "ticket_excerpt.log")
    written[-1].write_text(EXCERPT, encoding="utf-8", newline="\n")
    return written


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--out", type=Path, default=HERE, help="folder to write into")
    for path in make(parser.parse_args().out):
        print(f"{path.stat().st_size:>8,} bytes  {path.name}")
