"""Which records belong to one life of one server."""

import pytest

from loganalyze import sessions
from loganalyze.frames import Frames
from loganalyze.parse import Parser
from loganalyze.redact import Redactor
from loganalyze.sources import open_sources
from loganalyze.store import Store

ARGS = (
    "server_args=ServerArgs(model_path='/m/x', tp_size=8, mem_fraction_static={f}, api_key='sk-1')"
)
CAPACITY = (
    "max_total_num_tokens={n}, chunked_prefill_size=8192, max_prefill_tokens=16384, "
    "max_running_requests=2048, context_len=4096, available_gpu_mem=9.20 GB"
)


def stamp(second, tags=" TP0", hour=10):
    return f"[2026-01-05 {hour:02d}:{second // 60:02d}:{second % 60:02d}{tags}]"


def decode(second, tags=" TP0", running=3, hour=10):
    return (
        f"{stamp(second, tags, hour)} Decode batch, #running-req: {running}, #token: 500, "
        "token usage: 0.50, cuda graph: True, gen throughput (token/s): 90.00, #queue-req: 0"
    )


def start(second, tokens=1000, fraction=0.88, tags=" TP0"):
    return [
        f"{stamp(second, '')} {ARGS.format(f=fraction)}",
        f"{stamp(second, tags)} Load weight begin. avail mem=90.00 GB",
        f"{stamp(second, tags)} KV Cache is allocated. #tokens: {tokens}, KV size: 7.60 GB",
        f"{stamp(second, tags)} {CAPACITY.format(n=tokens)}",
        f"{stamp(second, '')} The server is fired up and ready to roll!",
    ]


@pytest.fixture
def split(tmp_path):
    """Write each list of lines to a file and return the sessions of all."""

    def run(rotated=None, **logs):
        store, parser = Store(), Parser()
        for name, lines in logs.items():
            path = tmp_path / f"{name}.log"
            path.write_text("\n".join(lines) + "\n")
            for source in open_sources([str(path)]):
                for chunk in parser.read(source):
                    store.add(chunk)
        names = {str(tmp_path / f"{k}.log"): v for k, v in (rotated or {}).items()}
        return sessions.split(Frames(**store.frames()), names)

    return run


def lines_of(data):
    return data.batch["line_no"].to_list()


def test_a_restart_begins_a_session_with_its_own_capacity_and_flags(split):
    log = [*start(0), decode(10), decode(20), *start(60, tokens=2000, fraction=0.93), decode(70)]
    first, second = split(a=log)
    assert [d.session.id for d in (first, second)] == [1, 2]
    assert first.session.config.kv_capacity_tokens == 1000
    assert first.session.config.arg("mem_fraction_static") == 0.88
    assert second.session.config.kv_capacity_tokens == 2000
    assert second.session.config.arg("mem_fraction_static") == 0.93
    assert (lines_of(first), lines_of(second)) == ([6, 7], [13])
    assert (first.session.ended_by, second.session.ended_by) == ("crash", "end_of_log")


def test_arguments_printed_twice_at_start_are_one_session(split):
    log = [f"{stamp(0, '')} {ARGS.format(f=0.88)}", *start(1), decode(10)]
    assert len(split(a=log)) == 1


def test_a_restart_is_seen_from_the_capacity_line_alone(split):
    log = [decode(10), f"{stamp(60)} {CAPACITY.format(n=2000)}", decode(70)]
    first, second = split(a=log)
    assert first.session.config.kv_capacity_tokens is None
    assert second.session.config.kv_capacity_tokens == 2000


def test_a_restart_is_seen_from_a_clock_that_runs_back(split):
    first, second = split(a=[decode(0, hour=12), decode(5, hour=12), decode(0), decode(5)])
    assert (lines_of(first), lines_of(second)) == ([1, 2], [3, 4])


def test_a_log_that_stands_newest_first_is_taken_from_its_end(split):
    """With its two runs: log viewers export the last line first."""
    lines = [*start(0), *(decode(10 + i) for i in range(20))]
    lines += [*start(60, tokens=2000), *(decode(70 + i) for i in range(20))]
    (first, second), whole = split(a=lines[::-1]), split(b=lines)
    assert [lines_of(first), lines_of(second)] == [list(range(45, 25, -1)), list(range(20, 0, -1))]
    for data, same in zip((first, second), whole, strict=True):
        assert data.session.start == same.session.start
        assert data.session.config.kv_capacity_tokens == same.session.config.kv_capacity_tokens
        assert data.batch["time"].to_list() == same.batch["time"].to_list()


def test_the_end_of_daylight_saving_time_is_no_restart(split):
    assert len(split(a=[decode(3590, hour=2), decode(5, hour=2), decode(10, hour=2)])) == 1


def test_secrets_are_taken_out_before_a_rule_sees_a_session(split):
    (data,) = split(a=[*start(0), decode(10)])
    config = Redactor().session(data).session.config
    assert config.arg("api_key") == "[removed]"
    assert config.args_removed == ("api_key",)


def test_an_orderly_stop_is_no_crash(split):
    log = [*start(0), decode(10), f"{stamp(20, '')} SIGTERM received. signum=15 frame=None. "]
    log[-1] += "Draining requests and shutting down..."
    assert split(a=log)[0].session.ended_by == "stop"


def test_the_same_record_of_another_tp_rank_counts_once(split):
    full = (
        "KV cache pool is full. Retract requests. #retracted_reqs: 2, "
        "#new_tokens_gained: 40, #new_token_ratio: 0.1000 -> 0.5000"
    )
    log = [decode(1), *(f"{stamp(2, f' TP{r}')} {full}" for r in range(8))]
    log += [f"{stamp(2, f' TP{r}')} {full}" for r in range(8)]  # it happened twice
    (data,) = split(a=log)
    assert data.event.height == 16
    assert (~data.event["duplicate"]).sum() == 2
    assert data.event["line_no"].filter(~data.event["duplicate"]).to_list() == [2, 10]


def test_ranks_that_print_their_gpu_alone_count_once_too(split):
    full = "decode out of memory happened, #retracted_reqs: 2, #new_token_ratio: 0.1000 -> 0.5000"
    (data,) = split(a=[f"[gpu={rank}] {full}" for rank in range(8)])
    assert data.event["duplicate"].to_list() == [False] + 7 * [True]


def test_equal_lines_of_one_rank_are_two_records(split):
    (data,) = split(a=[decode(1), decode(1)])
    assert data.batch["duplicate"].to_list() == [False, False]


FULL = (
    "KV cache pool is full. Retract requests. #retracted_reqs: 2, "
    "#new_tokens_gained: 40, #new_token_ratio: 0.1000 -> 0.5000"
)


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("ranks", [1, 4])
def test_of_a_log_that_holds_every_line_several_times_each_counts_once(split, n, ranks):
    """Two retractions in one second are two, and a line of which the copies were lost is one."""
    log = [decode(k, running=k) for k in range(12)]
    log[5:5] = [f"{stamp(5, f' TP{r}')} {FULL}" for r in range(ranks)] * 2
    (once,) = split(a=log)
    (data,) = split(a=[line for line in log for _ in range(n)][: 1 - n])
    for frame in ("batch", "event"):
        counted, want = (
            getattr(one, frame).filter(~getattr(one, frame)["duplicate"]) for one in (data, once)
        )
        assert counted.drop("line_no", "session").equals(want.drop("line_no", "session"))
    assert data.batch.height == 11 * n + 1


def test_of_a_log_that_holds_every_line_twice_a_refused_request_counts_once(split):
    refused = 'INFO:     10.0.0.7:5 - "POST /generate HTTP/1.1" 503 Service Unavailable'
    log = [decode(k, running=k) for k in range(12)]
    log[3:3] = [refused] * 3  # over one connection
    for n in (1, 2, 3):
        (data,) = split(a=[line for line in log for _ in range(n)])
        assert data.request["status"].to_list() == [503] * 3


def test_steady_lines_that_are_equal_by_chance_are_no_copies(split):
    """A line a step, of a batch that holds as many tokens all the time."""
    log = [decode(k, running=k) for k in range(12) for _ in range(2 + k % 4)]
    (data,) = split(a=log)
    assert not data.batch["duplicate"].any()


def test_a_log_with_few_equal_lines_holds_each_once(split):
    log = [decode(k, running=k) for k in range(12)]
    (data,) = split(a=log[:5] + log)
    assert not data.batch["duplicate"].any()
    (data,) = split(a=[decode(k // 2, running=k) for k in range(24)])
    assert not data.batch["duplicate"].any()


def test_dp_ranks_with_equal_values_are_no_duplicates(split):
    (data,) = split(a=[decode(1, " DP0 TP0"), decode(1, " DP1 TP4")])
    assert data.batch["duplicate"].to_list() == [False, False]


def test_two_containers_in_one_file_are_two_servers(split):
    log = []
    for second in range(0, 50, 10):
        log += [f"sglang-1  | {decode(second)}", f"sglang-2  | {decode(second + 1, running=7)}"]
    first, second = split(a=log)
    assert set(first.batch["running_req"]) == {3}
    assert set(second.batch["running_req"]) == {7}


def test_ray_actors_of_one_server_are_one_session(split):
    log = []
    for second in range(0, 50, 10):
        log += [
            f"(SchedulerActor pid=1{rank}) {decode(second, f' DP{rank} TP{rank}')}"
            for rank in range(4)
        ]
    (data,) = split(a=log)
    assert data.batch.height == 20


def test_files_of_several_ranks_are_one_server(split):
    logs = {f"r{k}": [decode(s, f" DP{k} TP{k}") for s in (0, 10, 20)] for k in range(2)}
    (data,) = split(**logs)
    assert sorted(set(data.batch["dp_rank"])) == [0, 1]


def test_files_of_the_same_rank_are_two_servers(split):
    log = [decode(s) for s in (0, 10, 20)]
    assert len(split(a=log, b=log)) == 2


def test_a_rotated_set_is_one_session(split):
    old, new = [*start(0), decode(10)], [decode(20), decode(30)]
    (data,) = split(rotated={"old": "set", "new": "set"}, old=old, new=new)
    assert lines_of(data) == [6, 1, 2]


def test_the_draft_models_pool_is_not_the_target(split):
    log = [
        f"{stamp(0)} KV Cache is allocated. #tokens: 1000, KV size: 7.60 GB",
        f"{stamp(1)} KV Cache is allocated. #tokens: 1000, K size: 0.10 GB, V size: 0.10 GB",
        f"{stamp(1)} {CAPACITY.format(n=1000)}",
        decode(10),
    ]
    assert split(a=log)[0].session.config.kv_pool_gib == 7.60


def test_the_full_pool_of_a_window_model_is_the_target(split):
    """From 0.5.17 on its pools have labels; the bare line is the draft model's."""
    pool = "KV Cache is allocated. #tokens: {n}, K size: {gb} GB, V size: {gb} GB"
    log = [
        f"{stamp(0)} Full " + pool.format(n=1000, gb="3.80"),
        f"{stamp(0)} SWA " + pool.format(n=800, gb="3.00"),
        f"{stamp(1)} " + pool.format(n=1000, gb="0.10"),
        f"{stamp(1)} {CAPACITY.format(n=1000)}",
        decode(10),
    ]
    config = split(a=log)[0].session.config
    assert (config.kv_pool_tokens, config.kv_pool_gib) == (1000, 7.60)


@pytest.mark.parametrize(("after", "tokens"), [(400, 400), (0, 900)])
def test_the_window_pool_after_graph_capture_wins(split, after, tokens):
    """Without a window the line after capture says 0, which is no size."""
    log = [
        f"{stamp(0)} Use sliding window memory pool. full_layer_tokens=2000, swa_layer_tokens=900",
        f"{stamp(1)} Post-capture KV sizing: full_layer_tokens=1000, swa_layer_tokens={after}",
        decode(10),
    ]
    assert split(a=log)[0].session.config.swa_pool_tokens == tokens


def test_the_size_after_graph_capture_wins(split):
    pool = "dtype: torch.bfloat16, #tokens: {n}, KV size: {gb} GB"
    log = [
        f"{stamp(0)} KV Cache VA upper bound. " + pool.format(n=9000, gb="68.40"),
        f"{stamp(1)} Post-capture KV sizing: KV cache allocated. "
        + pool.format(n=1000, gb="7.60")
        + ", avail mem=8.00 GB",
        decode(10),
    ]
    config = split(a=log)[0].session.config
    assert (config.kv_pool_tokens, config.kv_pool_gib) == (1000, 7.60)


def test_roles(split):
    prefill = (
        f"{stamp(1)} Prefill batch, #new-seq: 1, #new-token: 5, #cached-token: 0, token usage: "
        "0.10, #running-req: 0, #queue-req: 0, #pending-token: 0, #bootstrap-req: 2, "
        "#inflight-req: 1, cuda graph: False, input throughput (token/s): 9.00"
    )
    pd = decode(1).replace(
        "cuda graph",
        "pre-allocated usage: 0.10, #prealloc-req: 1, "
        "#transfer-req: 0, #retracted-req: 0, cuda graph",
    )
    assert split(a=[prefill])[0].session.role == "prefill"
    assert split(a=[pd])[0].session.role == "decode"
    assert split(a=[decode(1)])[0].session.role == "unified"


def test_the_log_of_another_node_lacks_the_first_ranks(split):
    """Its ranks print retractions, and with DP attention statistics too, but none of rank 0."""
    retract = "KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_token_ratio: 0.1"
    second = [f"{stamp(k, f' TP{8 + k}')} {retract} -> 0.2" for k in range(8)]
    assert sessions.ranks_missing(split(node=second)) == ("TP0", "TP7")
    groups = [decode(k, f" DP{4 + k % 4} TP{4 + k % 4}") for k in range(20)]
    assert sessions.ranks_missing(split(node=groups)) == ("DP0", "DP3")
    assert sessions.ranks_missing(split(node=second, first=[decode(3, " TP0")])) is None
    assert sessions.ranks_missing(split(plain=[decode(3, "")])) is None


def test_releases_that_contradict_each_other_are_none(split):
    """Retractions in the words of 0.4.6 or before, and of 0.5.7 or later."""
    ratio = "#new_token_ratio: 0.1 -> 0.2"
    old = f"{stamp(1)} Decode out of memory happened. #retracted_reqs: 1, {ratio}"
    new = f"{stamp(2)} KV cache pool is full. Retract requests. #retracted_reqs: 1, "
    new += f"#new_tokens_gained: 5, {ratio}"
    (data,) = split(log=[old, new])
    assert data.session.release_range is None


def test_start_up_lines_date_a_log(split):
    """`Load weight end. elapsed=`: 0.5.9 or later; without `dtype=` 0.5.10 or later."""
    line = "Load weight end. elapsed=2.36 s, type=X, avail mem=61.01 GB, mem usage=9.10 GB."
    (data,) = split(log=[f"{stamp(1)} {line}"])
    assert data.session.release_range == ("0.5.10", "0.5.23")
