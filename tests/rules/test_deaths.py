"""What a server died of, from its last lines, and what to do about each cause."""

import json

import pytest
from synth import capacity, outcomes, sessions, text
from synth import decode as decode_lines

from loganalyze import fatal, rules
from loganalyze.rules import deaths
from loganalyze.rules.planted import Writer

AT = "[2026-03-02 09:05:00 TP0]"
TRACE = f"{AT} Scheduler hit an exception: Traceback (most recent call last):\n  File x, line 1"

#: The last lines of a log -> words of the summary, and the flag (or words) of the first advice.
ENDS = {
    "an error of the GPU without a traceback": (
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
        "a GPU error (torch.AcceleratorError, illegal memory access)",
        "another attention backend",
    ),
    "torch's watchdog": (
        "[rank3]:[E302 09:05:00.33 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE) ran for 600094 milliseconds\n"
        "terminate called after throwing an instance of 'c10::DistBackendError'\n"
        "Fatal Python error: Aborted",
        "could not communicate",
        "py-spy dump",
    ),
    "the sigquit of a serving server, then the exit code": (
        f"{AT} SIGQUIT received. signum=None, frame=None. It usually means one child failed.\n"
        f"{AT} Exit code: -9",
        "killed from outside (signal 9)",
        "dmesg",
    ),
    "Slurm's word": (
        "slurmstepd: error: Detected 1 oom_kill event in StepId=123.0. Some of the step tasks "
        "have been OOM Killed.",
        "killed from outside (signal 9)",
        "dmesg",
    ),
    "the container's exit code": (
        "command terminated with exit code 137",
        "killed from outside (signal 9)",
        "dmesg",
    ),
    "the shell's last word": ("Killed", "killed from outside (signal 9)", "dmesg"),
    "no room for a pool": (
        f"{TRACE}\nRuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
        "leaves no room for a KV pool",
        ("--mem-fraction-static", 0.9),
    ),
    "no room in the pool": (
        f"{TRACE}\nRuntimeError: Prefill out of memory. Try to lower your batch size.\n"
        "Try to allocate 16384 tokens.\nAvailable tokens: 12032",
        "the KV pool had no room",
        "Upgrade",
    ),
    "no room in a pool with pages of one token": (
        f"{AT} Out of memory. Try to lower your batch size.\nTry to allocate 2318 tokens.\n"
        f"Available tokens: 77\n{TRACE}\nRuntimeError: Out of memory. Try to lower your batch "
        "size.\nTry to allocate 2318 tokens.\nAvailable tokens: 77",
        "the KV pool had no room",
        "Upgrade",
    ),
    "host memory": (
        f"{TRACE}\nValueError: Not enough host memory available. Requesting 65.90 GB but only "
        "have 23.11 GB free. Please reduce the size of the hierarchical cache.",
        "out of host memory",
        ("--hicache-ratio", "lower"),
    ),
    "Mamba slots": (
        f"{TRACE}\nAssertionError: Not enough space for mamba ping pong idx, try to increase "
        "--mamba-full-memory-ratio.",
        "no Mamba state slot",
        ("--mamba-full-memory-ratio", "higher"),
    ),
    "GPU memory": (
        f"{TRACE}\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.27 GiB.",
        "out of GPU memory (torch.OutOfMemoryError)",
        ("--mem-fraction-static", 0.83),
    ),
    "an exception of no known cause": (
        f"{TRACE}\nValueError: Failed with the words of a request in it",
        "its scheduler hit an exception (ValueError)",
        "Read the traceback",
    ),
    "a traceback that was left out": (
        f"{AT} Scheduler hit an exception: ...\nValueError: words",
        "its scheduler hit an exception (ValueError)",
        "Read the traceback",
    ),
    "a traceback on its own lines": (
        f"{AT} Scheduler hit an exception:\nTraceback (most recent call last):\n"
        "  File x, line 1\nValueError: words",
        "its scheduler hit an exception (ValueError)",
        "Read the traceback",
    ),
    "a line that was cut": (
        f"{AT} Scheduler hit an exception: Traceb",
        "its scheduler hit an exception",
        "Read the traceback",
    ),
    "an address that is taken": (
        "ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 30000): "
        "address already in use",
        "taken by another process",
        "ss -ltnp",
    ),
    "nodes that did not come": (
        f"{TRACE}\ntorch.distributed.DistStoreError: Timed out after 601 seconds waiting for "
        "clients. 8/16 clients joined.",
        "did not find each other",
        "--node-rank",
    ),
    "a node that went away": (
        f"{TRACE}\nRuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection "
        "closed by peer [10.0.0.2]:33412",
        "could not communicate",
        "py-spy dump",
    ),
    "a fault of an AMD GPU": (
        "Memory access fault by GPU node-8 (Agent handle: 0x55d1c8a0) on address 0x7f2c5a000000. "
        "Reason: Unknown.\nFatal Python error: Aborted",
        "a GPU error (memory access fault)",
        "another attention backend",
    ),
    "GPUs that others use": (
        f"{TRACE}\nValueError: The memory capacity is unbalanced. Some GPUs may be occupied by "
        "other processes. pre_model_load_memory=22.3, local_gpu_memory=78.6",
        "taken by other processes",
        "nvidia-smi",
    ),
    "a leak check": (
        f"{TRACE}\nValueError: token_to_kv_pool_allocator memory leak detected! size=3",
        "a leak",
        "Upgrade",
    ),
}


def served(*last, **args):
    """Return the log of a server that worked for a minute and then printed its last lines."""
    shown = {"mem_fraction_static": 0.85, "enable_hierarchical_cache": True, **args}
    w = Writer(**shown, hicache_ratio=2.0, mamba_full_memory_ratio=0.9)
    for i in range(60):
        w.decode(20 + i % 2, 30_000)
    return "\n".join([*w.text, *last]) + "\n"


@pytest.mark.parametrize("name", ENDS)
def test_a_death_is_recognised_and_named(name):
    last, words, advice = ENDS[name]
    found = outcomes(served(last))["CRS001"].finding
    assert words in found.summary
    assert str(found.severity) == "critical"
    assert "words of a request" not in str(found)
    first = found.actions[0]
    if isinstance(advice, tuple):
        assert (first.flag, first.proposed) == advice
    else:
        assert advice in first.text


@pytest.mark.parametrize(
    ("lives", "said"),
    [
        (4, "it died 3 times, in sessions 1, 2, 3."),
        (9, "it died 8 times, in sessions 1, 2, 3, 4, 5 and 3 more."),
    ],
)
def test_a_server_that_dies_again_and_again_says_how_often(lives, said):
    log = "".join(served() for _ in range(lives))  # no word of why, and the last one lives
    data = sessions(log)
    verdict = rules.conclude(rules.run(data), data)
    assert verdict.primary == "CRS001"
    assert verdict.headline.endswith(f"; {said}")


def test_the_exit_code_that_the_main_process_says_of_a_start():
    log = (
        "Traceback (most recent call last):\n  File x, line 1\nRuntimeError: Rank 0 scheduler "
        "died during initialization (exit code: -9). If exit code is -9 (SIGKILL), a common cause "
        "is the OS OOM killer.\n"
    )
    found = outcomes(text([capacity(400_000)]) + log)["CRS001"].finding
    assert "killed from outside (signal 9)" in found.summary


@pytest.mark.parametrize("loaded", [False, True])
def test_weights_that_do_not_fit_are_not_the_memory_fraction(loaded):
    """Until they are loaded --mem-fraction-static does nothing, so no fraction is too high."""
    w = Writer(mem_fraction_static=0.85)
    start = [line for line in w.text if "server_args" in line]
    start.append(f"{AT} Load weight begin. avail mem=78.60 GB")
    if loaded:
        start.append(
            f"{AT} Load weight end. type=X, dtype=torch.bfloat16, avail mem=9.10 GB, "
            "mem usage=69 GB."
        )
    end = ENDS["GPU memory"][0]
    log = "\n".join([*start, end]) + "\n"
    found = outcomes(log)["CRS001"].finding
    assert ("while the weights were loaded" in found.summary) is not loaded
    (data,) = sessions(log)
    assert (not deaths.memory_limits([data])) is not loaded


@pytest.mark.parametrize("stopping", [False, True])
def test_a_death_says_whether_it_came_in_an_orderly_stop(stopping):
    stop = f"{AT} SIGTERM received. signum=None frame=None. Draining requests and shutting down..."
    log = served(*([stop] if stopping else []), ENDS["GPU memory"][0])
    found = outcomes(log)["CRS001"].finding
    words = "which began in line 65 and went wrong" if stopping else "stop excluded"
    assert words in found.competing


def test_a_death_without_a_stamp_came_after_the_last_one():
    """Torch's line has a clock without a date: 60 lines from 09:00:00 on are what is known."""
    summary = outcomes(served(ENDS["torch's watchdog"][0]))["CRS001"].finding.summary
    assert summary.startswith("The server died after 09:0")


@pytest.mark.parametrize("name", ENDS)
def test_only_a_lack_of_gpu_memory_bounds_the_memory_fraction(name):
    (data,) = sessions(served(ENDS[name][0]))
    limit = deaths.memory_limit(data.session.id, deaths.memory_limits([data]))
    assert (limit and limit.fraction) == (0.85 if name == "GPU memory" else None)


def test_graphs_that_find_no_memory_name_both_levers():
    last = (
        f"{TRACE}\nException: Capture cuda graph failed: CUDA out of memory. Tried to allocate 2 "
        "GiB.\nPossible solutions: ..."
    )
    found = outcomes(served(last, cuda_graph_max_bs=160))["CRS001"].finding
    assert [a.flag for a in found.actions] == ["--mem-fraction-static", "--cuda-graph-max-bs"]


def test_an_error_in_the_middle_is_no_death_and_at_the_end_not_known_to_be_one():
    error = f"{AT} ValueError: a request asked for something that does not exist"
    lines = decode_lines(usage=[0.5] * 40)
    inside = outcomes(text(capacity(), lines[:20], error, lines[20:]))["CRS001"]
    assert (inside.status, inside.reason) == ("clear", "no sign of a crash or a restart")
    at_end = outcomes(text(capacity(), lines, error))["CRS001"]
    assert at_end.status == "not_applicable"
    assert "ValueError in line 42" in at_end.reason


@pytest.mark.parametrize(
    ("part", "status"),  # an excerpt can show a death, and can rule none out
    [("ModelRpcClient", "not_applicable"), ("ModelTpServer", "fired")],
)
def test_the_oldest_releases_go_on_after_an_exception(part, status):
    error = [f"Exception in {part}:", "Traceback (most recent call last):", "ValueError: x", ""]
    fill = (
        "new fill batch. #seq: 1. #cached_token: 0. #new_token: 7. #remaining_req: 0. "
        "#running_req: 0"
    )
    assert outcomes("\n".join([fill, *error, fill, *error, ""]))["CRS001"].status == status


def test_children_that_end_in_an_orderly_stop_died_of_it():
    stop = f"{AT} SIGTERM received. signum=None frame=None. Draining requests and shutting down..."
    found = outcomes(served(stop, f"{AT} Exit code: -9", "Killed"))["CRS001"]
    assert (found.status, found.reason) == ("clear", "the log ends in an orderly stop")


def test_a_soft_watchdog_kills_nobody():
    soft = f"{AT} Scheduler watchdog timeout (self.watchdog_timeout=60, self.soft=True)"
    found = outcomes(served(soft))
    assert found["CRS001"].status == "clear"
    assert found["HNG001"].status == "fired"


def test_a_start_that_ends_in_a_traceback_failed():
    """Without a statistics line and without a word of being ready."""
    trace = "Traceback (most recent call last):\n  File x, line 1\nKeyError: 'no such model'"
    found = outcomes(text(capacity(), trace))["CRS001"].finding
    assert "it ended in a traceback (KeyError)" in found.summary


def test_a_missing_py_spy_is_advice():
    last = [
        f"{AT} Pyspy failed to dump PID 4242. Error: /bin/sh: 1: py-spy: not found",
        f"{AT} Watchdog timeout (self.watchdog_timeout=300)",
    ]
    found = outcomes(served(*last))
    for code in ("CRS001", "HNG001"):
        assert "Install py-spy" in found[code].finding.actions[0].text


def test_two_fractions_that_ran_out_of_memory_leave_one_to_advise():
    """0.93, then 0.90: below both, and never back to what the first alone would leave."""
    ends = []
    for hour, fraction in ((9, 0.93), (10, 0.90)):
        ends.append(
            f"[2026-03-02 {hour:02d}:00:00] server_args=ServerArgs(mem_fraction_static={fraction})"
        )
        ends.append(wrapped().replace(" 09:", f" {hour:02d}:").rstrip())
        ends.append(
            f"{TRACE}\ntorch.OutOfMemoryError: CUDA out of memory.".replace("09:", f"{hour:02d}:")
        )
    found = [f for f in rules.findings(rules.run(sessions(text(ends)))) if f.code == "CRS001"]
    assert [f.session for f in found] == [1, 2]
    assert {f.actions[0].proposed for f in found} == {0.88}


def test_a_fraction_that_it_was_started_again_with_is_kept():
    args = "[2026-03-02 {}:00:00] server_args=ServerArgs(mem_fraction_static={})"
    log = text(
        [
            args.format("09", 0.93),
            wrapped().rstrip(),
            f"{TRACE}\ntorch.OutOfMemoryError: CUDA out of memory.",
            args.format(10, 0.88),
            wrapped().replace(" 09:", " 10:").rstrip(),
        ]
    )
    (found,) = [f for f in rules.findings(rules.run(sessions(log))) if f.code == "CRS001"]
    assert "keep --mem-fraction-static at 0.88" in found.actions[0].text


# -- ends that others than the server print ---------------------------------------------------


def wrapped(*ends, wrap=None):
    """Return the log of a minute of work and these last lines, each wrapped."""
    lines = [
        f"[2026-03-02 09:00:{second:02d} TP0] Decode batch, #running-req: 4, #token: 9000, "
        "token usage: 0.09, cuda graph: True, gen throughput (token/s): 160.00, #queue-req: 0"
        for second in range(60)
    ]
    wrap = wrap or (lambda line: line)
    return "".join(wrap(line) + "\n" for line in [*lines, *ends])


@pytest.mark.parametrize("why", ["", " DUE TO TIME LIMIT", " DUE TO PREEMPTION"])
def test_a_job_that_slurm_took_back_did_not_fail(why):
    data = sessions(
        wrapped(
            f"slurmstepd: error: *** JOB 12 ON node1 CANCELLED AT 2026-03-02T09:01:05{why} ***",
            "srun: error: node1: tasks 0-3: Killed",
        )
    )
    assert data[0].session.ended_by == "stop"
    assert rules.conclude(rules.run(data), data).status == "healthy"


@pytest.mark.parametrize(
    "wrap",
    [
        lambda line: json.dumps({"log": f"{line}\n", "stream": "stderr"}),
        lambda line: f"2026-03-02T09:01:00.1Z stderr F {line}",
        lambda line: f"sglang-1  | {line}",
    ],
)
def test_a_bare_word_is_the_end_of_a_wrapped_log_too(wrap):
    (data,) = sessions(wrapped("Killed", wrap=wrap))
    assert data.session.ended_by == "crash"
    assert fatal.cause(deaths.fatal_events(data).row(0, named=True)) == "killed"


def test_a_word_in_the_middle_of_a_wrapped_log_is_none():
    log = wrapped("Killed", wrap=lambda line: f"sglang-1  | {line}")
    (data,) = sessions(log + log.splitlines(keepends=True)[0].replace("09:00:00", "09:01:01"))
    assert data.session.ended_by == "end_of_log"


@pytest.mark.parametrize(
    ("end", "cause"),
    [
        ("[12345.6] NVRM: Xid (PCI:0000:17:00): 79, pid=1, name=python3, GPU lost.", "gpu_error"),
        ("srun: error: node1: task 0: Out Of Memory", "killed"),
        ("RuntimeError: DefaultCPUAllocator: can't allocate memory: 1 bytes.", "host_memory"),
    ],
)
def test_what_the_driver_the_job_step_and_the_allocator_say_last(end, cause):
    (data,) = sessions(wrapped(end))
    assert fatal.cause(deaths.fatal_events(data).row(0, named=True)) == cause
