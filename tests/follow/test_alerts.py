"""One alert, one all-clear: hysteresis, by hand."""

from datetime import datetime, timedelta

import pytest

from loganalyze.follow.alerts import CLEAR_S, Alerts
from loganalyze.model import Episode, Finding, Severity

START = datetime(2026, 2, 24, 12)


def at(seconds):
    return START + timedelta(seconds=seconds)


def finding(start, end, code="KV001", severity=Severity.CRITICAL, **extra):
    episode = Episode(at(start), at(end), int(start), int(end), None, extra.pop("source", "a.log"))
    return Finding("said", [episode], severity=severity, code=code, session=1, **extra)


def told(alerts, findings, now):
    return [(event, f.code) for event, f in alerts.update(findings, at(now), int(now))]


def test_one_saturation_is_one_alert_and_one_all_clear():
    alerts = Alerts()
    said = []
    for now in range(0, 1200, 15):
        found = [finding(100, min(now, 700))] if now >= 130 else []
        said += [(now, *one) for one in told(alerts, found, now)]
    assert [one[1:] for one in said] == [("alert", "KV001"), ("clear", "KV001")]
    assert said[0][0] == 135
    assert 700 + CLEAR_S <= said[1][0] <= 700 + CLEAR_S + 60


def test_a_finding_that_flickers_is_not_told_twice():
    alerts = Alerts()
    said = []
    for k, now in enumerate(range(100, 700, 15)):
        # Every third time the rule is not sure of the end yet.
        found = [] if k % 3 == 2 else [finding(50, now)]
        said += told(alerts, found, now)
    assert said == [("alert", "KV001")]


def test_what_is_long_over_is_never_told():
    assert told(Alerts(), [finding(100, 200)], 1000) == []


def test_what_began_and_ended_between_two_looks_is_told():
    alerts = Alerts()
    told(alerts, [], 100)
    assert told(alerts, [finding(200, 250)], 400) == [("alert", "KV001")]


def test_a_warning_that_becomes_critical_is_told_once_more():
    alerts = Alerts()
    grows = [Severity.WARNING, Severity.WARNING, Severity.CRITICAL, Severity.CRITICAL]
    said = [told(alerts, [finding(0, 15 * i, severity=s)], 15 * i) for i, s in enumerate(grows)]
    assert said == [[("alert", "KV001")], [], [("worse", "KV001")], []]


def test_a_second_saturation_is_a_second_alert():
    alerts = Alerts()
    said = []
    for now in range(0, 2400, 15):
        spells = [(100, 400), (1500, 1800)]
        episodes = [
            Episode(at(a), at(min(b, now)), a, min(b, now), None, "a.log")
            for a, b in spells
            if now >= a + 30
        ]
        found = [Finding("said", episodes, severity=Severity.CRITICAL, code="KV001", session=1)]
        said += told(alerts, found if episodes else [], now)
    assert said == [("alert", "KV001"), ("clear", "KV001")] * 2


def test_what_a_saturation_drags_along_is_raised_without_a_word():
    alerts = Alerts()
    both = [finding(0, 100), finding(50, 100, "KV004", Severity.WARNING)]
    assert told(alerts, both, 100) == [("alert", "KV001")]
    assert {f.code for f in alerts.active} == {"KV001", "KV004"}


def test_something_worse_is_told_although_something_is_raised():
    alerts = Alerts()
    told(alerts, [finding(0, 100, "KV004", Severity.WARNING)], 100)
    both = [finding(110, 115, "CRS001"), finding(0, 115, "KV004", Severity.WARNING)]
    assert told(alerts, both, 115) == [("alert", "CRS001")]


def test_what_outlives_its_cause_gets_its_word_then():
    alerts = Alerts()
    told(alerts, [finding(0, 100), finding(0, 100, "KV004", Severity.WARNING)], 100)
    said = []
    for now in range(115, 400, 15):
        said += told(alerts, [finding(0, 100), finding(0, now, "KV004", Severity.WARNING)], now)
    assert said == [("alert", "KV004"), ("clear", "KV001")]


@pytest.mark.parametrize("extra", [{"severity": Severity.INFO}, {"explained_by": "KV001"}])
def test_context_and_consequences_are_no_alerts(extra):
    assert told(Alerts(), [finding(0, 100, "ADM003", **extra)], 100) == []


def test_two_logs_are_two_alerts():
    alerts = Alerts()
    both = [finding(0, 100), finding(0, 100, source="b.log")]
    assert told(alerts, both, 100) == [("alert", "KV001")] * 2


def test_without_stamps_lines_are_the_clock():
    alerts = Alerts()
    episode = Episode(None, None, 100, 500, None, "a.log")
    found = [Finding("said", [episode], severity=Severity.WARNING, code="KV001", session=1)]
    assert [e for e, _ in alerts.update(found, None, 505)] == ["alert"]
    assert alerts.update(found, None, 600) == []
    assert [e for e, _ in alerts.update(found, None, 800)] == ["clear"]


def test_silence_can_end_an_alert():
    alerts = Alerts()
    told(alerts, [finding(0, 100)], 100)
    assert alerts.expire(at(100 + CLEAR_S - 1), 100) == []
    assert [e for e, _ in alerts.expire(at(100 + CLEAR_S), 100)] == ["clear"]


def test_a_death_is_told_although_a_saturation_as_severe_was():
    alerts = Alerts()
    told(alerts, [finding(0, 100)], 100)
    both = [finding(101, 101, "CRS001"), finding(0, 100)]
    assert told(alerts, both, 101) == [("alert", "CRS001")]
    assert [f.code for f in alerts.active] == ["CRS001", "KV001"]


def test_a_death_after_a_hang_is_told_too():
    alerts = Alerts()
    hang = finding(0, 100, "HNG001")
    assert told(alerts, [hang], 100) == [("alert", "HNG001")]
    killed = [hang, finding(101, 101, "CRS001", explained_by="HNG001")]
    assert told(alerts, killed, 101) == [("alert", "CRS001")]


def test_a_death_is_over_once_the_server_was_started_again():
    alerts = Alerts()
    died = finding(100, 100, "CRS001")
    assert alerts.update([died], at(100), 100, {1}) == [("alert", died)]
    # Another log goes on meanwhile: the server is as dead as before.
    assert alerts.update([died], at(5000), 100, {1}) == []
    back = finding(100, 5010, "CRS001")
    said = []
    for now in range(5010, 5010 + int(CLEAR_S) + 60, 15):
        said += alerts.update([back], at(now), now)
    assert said == [("clear", back)]
