"""Memory arithmetic: the founding case's numbers, worked out by hand."""

import re

import pytest
from model_configs import GLM52, KIMI

from loganalyze.capacity import kv_bytes, memory
from loganalyze.capacity.kv_bytes import Setting
from loganalyze.capacity.memory import Start
from loganalyze.model import ServerConfig, Session

CELL = 70_272
KIMI_CELLS = kv_bytes.cells(KIMI, Setting(tp=8))

#: What the founding server printed at two memory fractions.
LOW = Start(session=1, fraction=0.85, tokens=116_171)
HIGH = Start(session=2, fraction=0.88, tokens=159_277)


def test_two_sessions_and_the_formula_give_the_card():
    # 43,106 tokens more x 70,272 bytes / 0.03 = 94.04 GiB.
    known = memory.solve([LOW, HIGH], KIMI_CELLS)
    assert known.total_gib == pytest.approx(94.04, abs=0.005)
    assert known.bytes_per_token == CELL
    # 0.88 x 94.04 - 10.42 = 72.33 GiB of weights and buffers.
    assert known.static_gib == pytest.approx(72.33, abs=0.01)


def test_two_sessions_and_the_card_give_the_bytes():
    known = memory.solve([LOW, HIGH], total_gib=94.04)
    assert known.bytes_per_token == pytest.approx(CELL, rel=1e-3)


def test_two_sessions_and_their_free_memory_give_both():
    # Nothing but what the capacity lines print: the pool grew by 2.82 GiB.
    low = Start(1, 0.85, 116_171, free_gib=14.10)
    high = Start(2, 0.88, 159_277, free_gib=11.28)
    known = memory.solve([low, high])
    assert known.bytes_per_token == pytest.approx(CELL, rel=5e-3)
    assert known.total_gib == pytest.approx(94.04, rel=5e-3)
    assert "0.4%" in known.bytes_from


def test_free_memory_that_did_not_move_tells_nothing():
    known = memory.solve(
        [Start(1, 0.85, 116_171, free_gib=9.2), Start(2, 0.88, 159_277, free_gib=9.2)]
    )
    assert known.bytes_per_token is None
    assert known.total_gib is None
    assert known.per_fraction == pytest.approx(43_106 / 0.03)


def test_a_size_line_needs_no_formula():
    known = memory.solve([LOW, Start(2, 0.88, 159_277, bytes_per_token=10.42 * 2**30 / 159_277)])
    assert known.total_gib == pytest.approx(94.04, rel=1e-3)


@pytest.mark.parametrize(
    ("fraction", "tokens"), [(0.88, 159_277), (0.93, 231_120), (0.95, 259_858), (0.85, 116_171)]
)
def test_all_of_a_higher_fraction_goes_to_the_pool(fraction, tokens):
    per_fraction = memory.solve([LOW, HIGH], KIMI_CELLS).per_fraction
    found = memory.whole_pages(159_277 + (fraction - 0.88) * per_fraction, 1)
    assert found == pytest.approx(tokens, rel=1e-3)


def test_the_wrong_bytes_of_the_founding_case_do_not_fit_its_card():
    # 136,793 bytes a token would need 183 GiB, on a card of 95.6.
    low = Start(1, 0.85, 116_171, bytes_per_token=136_793)
    known = memory.solve([low, HIGH], total_gib=95.59)
    assert known.total_gib == 95.59
    assert any("183." in note and "95.59" in note for note in known.notes)


def test_tokens_that_do_not_fit_are_named():
    start = Start(1, 0.88, 159_277, bytes_per_token=600_000.0, total_gib=94.0)
    known = memory.solve([start])
    assert known.static_gib is None
    assert any("do not fit" in note for note in known.notes)


def test_one_session_with_the_memory_before_the_weights():
    start = Start(1, 0.88, 159_277, bytes_per_token=float(CELL), total_gib=94.04)
    known = memory.solve([start])
    found = memory.whole_pages(159_277 + 0.05 * known.per_fraction, 1)
    assert found == pytest.approx(231_120, rel=1e-3)


def test_host_memory():
    assert memory.host_tokens(300 * 2**30 / 8, CELL) == 572_992
    assert memory.host_tokens(48e9, CELL) == 683_060
    assert memory.host_tokens(48e9, CELL, page=64) == 683_060 // 64 * 64


def test_pages_are_whole():
    assert memory.tokens_in(1.0, 2**20) == 1024
    assert memory.tokens_in(1.0, 2**20, page=100) == 1000
    assert memory.whole_pages(-5.0, 1) == 0


@pytest.mark.parametrize(
    ("tokens", "running", "c", "usage"),
    [
        (159_277, 35, 1.0, 0.885),
        (116_171, 50, 1.0, 0.79),
        (159_277, 35, 0.3, 0.945),
        (116_171, 50, 0.3, 0.91),
    ],
)
def test_the_admission_threshold(tokens, running, c, usage):
    # 35 x 4,096 x 0.098 + 4,096 + a prompt of 90 = 18.2 thousand tokens kept free.
    assert memory.admission_usage(tokens, running, c, 90) == pytest.approx(usage, abs=0.004)


def test_log_and_formula_agree():
    cell, said = memory.settle(KIMI_CELLS, 10.42 * 2**30 / 159_277)
    assert cell is KIMI_CELLS[0]
    assert said.startswith("log and formula agree")


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        (70_272 / 2, "8 bits, not 16"),
        (70_272 * 2, "16 bits, not 8"),
        (136_793, "disagree by \\+94.7%.*The log is right"),
    ],
)
def test_what_is_off_is_named(measured, words):
    _, said = memory.settle(KIMI_CELLS, measured)
    assert re.search(words, said)


def test_within_one_percent_is_agreement_and_beyond_is_not():
    assert "agree:" in memory.settle(KIMI_CELLS, 70_272 * 1.0099)[1]
    assert "disagree" in memory.settle(KIMI_CELLS, 70_272 * 1.0101)[1]


def test_the_size_line_chooses_the_layout():
    cells = kv_bytes.cells(GLM52, Setting(tp=8, kv_dtype="fp8_e4m3"))
    # A public recipe prints 464,768 tokens in 23.91 GiB: 55,238 bytes a token.
    cell, said = memory.settle(cells, 23.91 * 2**30 / 464_768)
    assert cell.bytes_per_token == 55_224
    assert "trtllm" in said
    open_cell, both = memory.settle(cells, None)
    assert open_cell is None
    assert "55,224" in both
    assert "61,464" in both


def session(number, **args):
    return Session(
        id=number,
        source="a.log",
        start=None,
        end=None,
        first_line=1,
        last_line=2,
        ended_by="end_of_log",
        role="unified",
        release_range=None,
        config=ServerConfig(args=args),
    )


def test_servers_that_differ_in_more_than_the_fraction_are_not_compared():
    chosen = session(2, mem_fraction_static=0.88, tp_size=8, kv_cache_dtype="auto")
    same = session(1, mem_fraction_static=0.85, tp_size=8, kv_cache_dtype="auto")
    other = session(3, mem_fraction_static=0.85, tp_size=8, kv_cache_dtype="fp8_e4m3")
    assert [s.id for s in memory.alike([same, chosen, other], chosen)] == [1, 2]
