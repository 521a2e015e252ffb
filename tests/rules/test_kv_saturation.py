"""KV001 by hand: when it begins and ends, what it says, and how an excerpt is judged."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synth import START, capacity, decode, outcomes, sessions, text

from loganalyze import capacity as measured
from loganalyze import rules
from loganalyze.model import Severity
from loganalyze.rules.planted import Writer

FOUNDING = (
    "[2026-02-24 12:03:07 TP0] Decode batch, #running-req: 35, #token: 150158, token usage: 0.94, "
    "cuda graph: True, gen throughput (token/s): 606.88, #queue-req: 115\n"
)
FOUNDING_CAPACITY = (
    "[2026-02-24 11:30:00 TP0] max_total_num_tokens=159277, chunked_prefill_size=8192, "
    "max_prefill_tokens=16384, max_running_requests=2048, context_len=262144, "
    "available_gpu_mem=9.20 GB\n"
)


def conclude(log):
    data = sessions(log)
    return rules.conclude(rules.run(data), data)


def kv001(*parts, **overrides):
    limits = {f"KV001.{name}": value for name, value in overrides.items()}
    return outcomes(text(*parts), limits)["KV001"]


def spans(outcome):
    """Return the episodes in seconds since START."""
    return [
        ((e.start - START).total_seconds(), (e.end - START).total_seconds())
        for e in outcome.finding.episodes
    ]


# -- the one-line founding case -------------------------------------------------------------


def test_one_line_is_saturated_with_low_confidence():
    verdict = conclude(FOUNDING)
    assert (verdict.status, verdict.primary, verdict.confidence) == ("saturated", "KV001", "low")
    assert "35 running, 115 waiting" in verdict.headline


def test_one_line_capacity():
    # 606.88 / 35, 150158 / 35, 150158 / 0.94, and 159742 / 4290.2 = 37.2
    found = measured.measure(sessions(FOUNDING)[0])
    assert found.rate_per_req == 17.34
    assert found.tokens_per_req == 4290.2
    assert (found.kv_tokens_source, found.requests_fit) == ("inferred", 37)
    assert found.kv_tokens == pytest.approx(159_743, abs=2)


def test_one_line_with_the_capacity_line():
    found = measured.measure(sessions(FOUNDING_CAPACITY + FOUNDING)[0])
    assert (found.kv_tokens, found.kv_tokens_source, found.requests_fit) == (159_277, "log", 37)
    assert conclude(FOUNDING_CAPACITY + FOUNDING).primary == "KV001"


def test_profiles_change_words_only():
    data = sessions(FOUNDING)
    by_profile = {
        profile: rules.conclude(rules.run(data), data, profile)
        for profile in (None, "online", "batch")
    }
    assert len({v.headline for v in by_profile.values()}) == 3
    assert {(v.status, v.primary, v.confidence) for v in by_profile.values()} == {
        ("saturated", "KV001", "low")
    }
    assert "100-2,000 waiting" in by_profile["batch"].headline
    assert "users wait" in by_profile["online"].headline


@pytest.mark.parametrize(
    ("usage", "queue", "status"),
    [
        (0.94, 115, "saturated"),
        (0.94, 0, "undetermined"),
        (0.45, 50, "undetermined"),
        (0.05, 0, "undetermined"),
    ],
)
def test_excerpts_are_never_healthy(usage, queue, status):
    log = text(decode(usage=[usage] * 3, queue=queue))
    verdict = conclude(log)
    assert (verdict.status, verdict.confidence) == (status, "low")
    if status == "undetermined":
        assert "3 statistics lines" in verdict.headline


def test_an_excerpt_without_stamps():
    line = (
        "Decode batch. #running-req: 1010, #token: 55006, token usage: 0.93, "
        "gen throughput (token/s): 1397.13, #queue-req: 12279\n"
    )
    verdict = conclude(line)
    assert (verdict.status, verdict.primary, verdict.confidence) == ("saturated", "KV001", "low")


def test_a_retraction_stands_for_a_queue_in_an_excerpt():
    log = text(
        decode(usage=[1.0] * 3, every_s=7),
        "[2026-03-02 09:00:16 TP0] KV cache pool is full. Retract requests. #retracted_reqs: 1, "
        "#new_tokens_gained: 900, #new_token_ratio: 0.0980 -> 0.9446",
        decode(usage=[0.51], queue=1, start_s=21),
    )
    assert conclude(log).primary == "KV001"


# -- hysteresis -----------------------------------------------------------------------------


@pytest.mark.parametrize(("usage", "fires"), [(0.89, False), (0.90, True)])
def test_enters_at_ninety_percent(usage, fires):
    found = kv001(
        capacity(),
        decode(usage=[0.5] * 60 + [usage] * 60 + [0.5] * 60, queue=[0] * 60 + [9] * 60 + [0] * 60),
    )
    assert (found.status == "fired") == fires


def test_begins_and_ends_with_the_full_pool():
    found = kv001(
        capacity(),
        decode(usage=[0.5] * 60 + [0.95] * 60 + [0.5] * 60, queue=[0] * 60 + [9] * 60 + [0] * 60),
    )
    assert spans(found) == [(60.0, 119.0)]


@pytest.mark.parametrize(("length", "fires"), [(25, False), (35, True)])
def test_shorter_than_half_a_minute_is_a_burst(length, fires):
    rest = 150 - length
    found = kv001(
        capacity(), decode(usage=[0.95] * length + [0.5] * rest, queue=[9] * length + [0] * rest)
    )
    assert (found.status == "fired") == fires


def test_a_saw_tooth_is_one_episode():
    # Waves: full for 40 s, down to 0.70 for 20 s, with the queue never empty.
    wave = [0.97] * 40 + [0.70] * 20
    found = kv001(capacity(), decode(usage=wave * 6, queue=30))
    assert spans(found) == [(0.0, 339.0)]


def test_an_empty_queue_divides_episodes():
    usage = [0.95] * 60 + [0.95] * 60 + [0.95] * 60
    queue = [9] * 60 + [0] * 60 + [9] * 60
    found = kv001(capacity(), decode(usage=usage, queue=queue))
    assert spans(found) == [(0.0, 59.0), (120.0, 179.0)]


def test_silence_is_not_saturation():
    found = kv001(
        capacity(),
        decode(usage=[0.95] * 60, queue=9),
        decode(usage=[0.95] * 60, queue=9, start_s=400),
    )
    assert spans(found) == [(0.0, 59.0), (400.0, 459.0)]


def test_the_running_cap_is_not_saturation():
    lines = decode(usage=[0.95] * 90, queue=9, running=48)
    assert kv001(capacity(cap=48), lines).status == "clear"
    assert kv001(capacity(cap=512), lines).status == "fired"


def test_long_and_mostly_saturated_is_critical():
    long = kv001(capacity(), decode(usage=[0.95] * 400, queue=9)).finding
    short = kv001(
        capacity(), decode(usage=[0.95] * 60 + [0.3] * 400, queue=[9] * 60 + [0] * 400)
    ).finding
    assert (long.severity, long.confidence) == (Severity.CRITICAL, "high")
    assert short.severity == Severity.WARNING


def test_overrides_are_used_and_stated():
    lines = decode(usage=[0.92] * 120, queue=9, running=100)
    assert kv001(capacity(), lines).status == "fired"
    strict = kv001(capacity(), lines, enter_usage=0.95)
    assert strict.status == "clear"
    assert strict.limits["enter_usage"] == 0.95


@settings(max_examples=15, deadline=None)
@given(
    waves=st.lists(
        st.tuples(
            st.integers(5, 60), st.sampled_from([0.5, 0.85, 0.91, 0.94, 0.98]), st.booleans()
        ),
        min_size=2,
        max_size=8,
    ),
    limits=st.lists(
        st.sampled_from([0.88, 0.90, 0.93, 0.96]), min_size=2, max_size=2, unique=True
    ),
)
def test_a_stricter_limit_never_adds_time(waves, limits):
    usage = [u for n, u, _ in waves for _ in range(n)]
    queue = [9 if q else 0 for n, _, q in waves for _ in range(n)]
    lines = decode(usage=usage, queue=queue)

    def total(limit):
        found = kv001(capacity(), lines, enter_usage=limit)
        return sum(b - a for a, b in spans(found)) if found.finding else 0.0

    assert total(max(limits)) <= total(min(limits)) + 1e-9


# -- what it says ---------------------------------------------------------------------------


def evidence(finding):
    return {e.label: e for e in finding.evidence}


def test_evidence_of_the_ceiling():
    # 38,000 tokens of 40,000 in 10 requests: 3,800 each, so 10 fit.
    shown = evidence(
        kv001(
            capacity(pool=40_000), decode(usage=[0.95] * 120, queue=9, running=10, pool=40_000)
        ).finding
    )
    assert shown["tokens per running request"].value == 3800
    assert shown["requests that fit"].value == 10
    assert shown["KV pool"].value == 40_000
    assert shown["KV pool"].line_no == 1
    assert shown["waiting requests"].value == 9


def test_burn_down_from_the_first_line():
    # Usage 0.10 at 1,000 token/s in a pool of 100,000: full 90 s later.
    usage = [0.10 + 0.0095 * i for i in range(90)] + [0.97] * 60
    lines = decode(usage=usage, queue=[0] * 80 + [20] * 70, rate=1000.0, running=40)
    shown = evidence(kv001(capacity(), lines).finding)
    found = shown["time to a full pool, foreseeable at this line"]
    assert found.value == 90
    assert found.line_no == 2


def test_effective_throughput_is_tokens_over_wall_time():
    # 10 requests x 40 steps a line, a line every 2 s: 200 token/s, whatever the lines print.
    lines = decode(usage=[0.95] * 120, queue=9, running=10, rate=400.0, every_s=2.0)
    args = "[2026-03-02 09:00:00] server_args=ServerArgs(model_path='/m', decode_log_interval=40)"
    shown = evidence(kv001(args, capacity(), lines).finding)
    found = shown["decode throughput of the whole log"]
    assert found.value == pytest.approx(200, abs=2)
    assert "400" in found.formula


def test_present_stands_beside_proposed():
    finding = outcomes(
        "[2026-03-02 09:00:00] server_args=ServerArgs(model_path='/m', mem_fraction_static=0.88, "
        "kv_cache_dtype='auto', tp_size=1, decode_log_interval=40)\n"
        + text(capacity(), decode(usage=[0.95] * 120, queue=9))
    )["KV001"].finding
    flags = {a.flag: a for a in finding.actions if a.flag}
    assert (flags["--kv-cache-dtype"].present, flags["--kv-cache-dtype"].proposed) == (
        "auto",
        "fp8_e4m3",
    )
    assert "--num-continuous-decode-steps" not in flags


# -- beside prefill that takes most of the time ----------------------------------------------


@pytest.mark.parametrize(
    ("new", "running", "lacks_kv"),
    [
        # 5,600 of 40,000 tokens are free and each prompt brings 6,000: it does not fit, and the
        # batch ends at 6,000 of the 8,192 tokens that it may have.
        (6_000, 5, True),
        # Batches as large as they may be end at that.
        (8_192, 5, False),
        # 1,000 tokens fit.
        (1_000, 5, False),
    ],
)
def test_batches_that_end_short_show_a_lack_of_kv_while_prefill_is_the_limit(
    new, running, lacks_kv
):
    w = Writer(pool=40_000)
    for i in range(60):
        for _ in range(round((3 + i % 3) * 6_000 / new)):
            w.prefill(1, new, running - 1, 50, usage=0.86)
        w.decode(running, 34_400, 50)
    every = rules.findings(rules.run(sessions("\n".join(w.text) + "\n")))
    found = {one.code: one for one in every}
    assert "PRE001" in found
    assert ("KV001" in found) == lacks_kv
    if lacks_kv:
        assert (found["KV001"].explained_by, found["KV001"].confidence) == ("PRE001", "low")


@pytest.mark.parametrize(("pool", "full"), [(12_000, True), (120_000, False)])
def test_a_small_pool_is_full_where_one_more_request_does_not_fit(pool, full):
    """Usage swings between 0.80 and 0.92 within seconds; 15 run, 4 wait, the ratio is 0.0049.

    One more of the size of those that run makes 0.86 to 0.917. Admission asks for 15 x 4,096 x
    0.0049 + 4,096 = 4,397 tokens, x 1.35 = 5,936. At 0.86 the small pool has 1,680 free and the
    large one 16,800.
    """
    w = Writer(pool=pool, schedule_conservativeness=0.05)
    for i in range(200):
        w.decode(15, int(pool * (0.80 + 0.03 * (i % 5))), 4)
    found = outcomes("\n".join(w.text) + "\n")["KV001"].finding
    assert bool(found) is full
    if found:
        assert "15 running, 4 waiting" in found.summary
        assert len(found.episodes) == 1
