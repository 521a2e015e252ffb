"""Each rule fires on what is planted, is quiet just short of it, and says when it cannot tell."""

import pytest
import quiet
from synth import capacity, decode, outcomes, planted, sessions, text, without

from loganalyze import rules
from loganalyze.rules import selfcheck
from loganalyze.rules.planted import PLANTED

CODES = list(rules.all_rules())
PLANTED_FOR = {code: planted for planted in PLANTED for code in planted.shows}

EXCERPT = text(decode(usage=[0.5], queue=3))
UNSTAMPED = text(decode(usage=[0.5] * 40, stamps=False))

#: What a rule without `needs`, or with needs that a log always has, cannot tell from.
CANNOT_TELL = {
    "KV004": text(capacity()),
    "KV007": EXCERPT,
    "KV008": EXCERPT,
    "KV009": EXCERPT,
    "KV010": EXCERPT,
    "ADM001": EXCERPT,
    "ADM002": EXCERPT,
    "ADM003": EXCERPT,
    "KV005": EXCERPT,
    "QUE001": EXCERPT,
    "CLI001": EXCERPT,
    "CLI002": EXCERPT,
    "OVR001": EXCERPT,
    "PRE001": EXCERPT,
    "IDL001": UNSTAMPED,
    "HNG001": UNSTAMPED,
    "WRM001": EXCERPT,
    "THR002": EXCERPT,
    "LNG001": EXCERPT,
    "LBL001": EXCERPT,
    "PDT001": EXCERPT,
    "ERR001": EXCERPT,
    "PDD001": text(decode(usage=[0.5] * 40)),
}


@pytest.mark.parametrize("code", CODES)
def test_fires(code):
    found = outcomes(planted(PLANTED_FOR[code].name))[code]
    assert found.status == "fired", found.reason
    finding = found.finding
    assert finding.summary
    assert finding.code == code
    assert all(e.first_line <= e.last_line for e in finding.episodes)


@pytest.mark.parametrize("code", CODES)
def test_is_quiet_just_short_of_its_limit(code):
    logs = getattr(quiet, code.lower())()
    found = outcomes(sessions(*logs))[code]
    assert found.status == "clear", (found.status, found.reason)
    assert found.reason


@pytest.mark.parametrize("code", [c for c in CODES if c != "CRS001"])  # any log has an end
def test_says_when_it_cannot_tell(code):
    needs = rules.all_rules()[code].needs
    if code in CANNOT_TELL:
        data = sessions(CANNOT_TELL[code])
    else:
        data = without(planted(PLANTED_FOR[code].name), *needs[0].split("|"))
    found = outcomes(data)[code]
    assert found.status == "not_applicable", (found.status, found.reason)
    assert found.reason.startswith("cannot tell from this log: ")


def test_clear_means_that_the_log_could_have_shown_it():
    # One line: that 0.5 is not full shows in it, a silence, a crash or an idle time does not.
    found = outcomes(EXCERPT)
    assert found["KV001"].status == "clear"
    for code in ("CRS001", "DRN001", "HNG001", "IDL001", "KV004", "TPS001"):
        assert found[code].status == "not_applicable", code
        assert (
            "1 statistics line cannot show it; 30 s or more of the server's" in found[code].reason
        )
    # 40 s are long enough for a silence of 30 s, not for a spell of 60.
    found = outcomes(text(decode(usage=[0.9] * 41, queue=0)))
    assert found["HNG001"].status == "clear"
    assert found["KV003"].status == "not_applicable"
    assert "1 min or more" in found["KV003"].reason


@pytest.mark.parametrize("code", [c for c in CODES if rules.all_rules()[c].needs])
def test_missing_columns_are_named(code):
    data = planted(PLANTED_FOR[code].name)
    for need in rules.all_rules()[code].needs:
        found = outcomes(without(data, *need.split("|")))[code]
        assert found.status == "not_applicable", (need, found.reason)


def test_every_rule_is_planted_and_none_raises():
    checked = selfcheck.run()
    assert [c.code for c in checked] == CODES
    assert all(c.passed for c in checked)


@pytest.mark.parametrize("code", CODES)
def test_every_finding_names_what_it_was_weighed_against(code):
    assert outcomes(planted(PLANTED_FOR[code].name))[code].finding.competing


@pytest.mark.parametrize("name", [p.name for p in PLANTED])
def test_no_rule_fails_on_any_planted_log(name):
    found = outcomes(planted(name))
    assert not {code: o.reason for code, o in found.items() if o.status == "error"}


def test_every_rule_has_a_place_in_the_decision_order():
    assert set(rules.DECISION_ORDER) == set(CODES)
    assert len(rules.DECISION_ORDER) == len(CODES)


def test_explained_and_read_rules_exist():
    for rule in rules.all_rules().values():
        assert set(rule.explains) | set(rule.after) <= set(CODES)


def test_capacity_line_is_read():
    (data,) = sessions(text(capacity(pool=159_277), decode(usage=[0.5])))
    assert data.session.config.kv_capacity_tokens == 159_277
