"""Dates and clocks as other programs write them: the moment, its zone, and nothing guessed."""

import os
from datetime import datetime, timedelta

import pytest
from test_wrapped import SIGQUIT, START, START_UTC, at, body, epoch, own, read

#: How a stamp of 2026-11-20 10:00:00.250 is written, as a form of Python's, and its milliseconds.
FORMS = {
    "%Y %b %d %H:%M:%S": 0,
    "%b %d %Y %H:%M:%S.250": 250,
    "%b %d, %Y %H:%M:%S,250": 250,
    "%d %b %Y %H:%M:%S.250": 250,
    "%d/%b/%Y:%H:%M:%S": 0,
    "%d-%b-%Y %H:%M:%S": 0,
    "%Y-%b-%d %H:%M:%S.250": 250,
    "%B %d, %Y %H:%M:%S": 0,
    "%a, %d %b %Y %H:%M:%S": 0,
    "%A, %d-%b-%y %H:%M:%S": 0,
    "%a %b %d %H:%M:%S CST %Y": 0,
    "%a %b %d %I:%M:%S %p CST %Y": 0,
    "%b %d, %Y @ %H:%M:%S.250": 250,
    "%Y-%m-%d %I:%M:%S.250 %p": 250,
    "%m/%d/%Y, %I:%M:%S %p": 0,
    "%d.%m.%Y, %H:%M:%S": 0,
    "%Y.%m.%d %H:%M:%S,250": 250,
    "%Y-%m-%d %H:%M:%S:250": 250,
    "%Y%m%dT%H%M%S.250": 250,
    "%Y%m%d-%H:%M:%S": 0,
    "%Y年%m月%d日 %H:%M:%S": 0,
    "%Y年 %m月 %d日 星期五 %H:%M:%S": 0,
}
#: What stands around it.
AROUND = ("{} ", "[{}] ", "{} - INFO - ", "{}: ", "{}\t", "INFO | {} | ", "{} gpu-7 sglang[42]: ")


@pytest.mark.parametrize("form", FORMS)
def test_a_wrappers_date_of_any_form(form, tmp_path):
    """It is the time of a record without a stamp, and tells the zone beside one of SGLang's."""
    for around in AROUND:
        for zone, name in (("", None), (" +0200", "+02:00"), (" UTC", "UTC"), (" CET", None)):
            said = [around.format(at(k, form) + zone) for k in range(6)]
            frames, coverage, source = read(
                tmp_path, "".join(f"{before}{body(k)}\n" for k, before in enumerate(said))
            )
            assert frames.batch["time"].to_list() == [
                START + timedelta(seconds=k, milliseconds=FORMS[form]) for k in range(6)
            ], around + zone
            assert frames.batch["time_has_date"].all()
            assert source.tz == name
            assert coverage.lines_unrecognised == coverage.lines_partial == 0
            frames, _, source = read(
                tmp_path, "".join(f"{before}{own(k)}\n" for k, before in enumerate(said))
            )
            assert frames.batch.select("time", "tp_rank").rows() == [
                (START + timedelta(seconds=k), 0) for k in range(6)
            ]
            assert source.tz == name


@pytest.mark.parametrize(
    "before",
    [
        "Fri Nov 20 10:00:0{} ",
        "20 Nov 10:00:0{} INFO ",
        "11月 20 10:00:0{} gpu-7 sglang[42]: ",
        "11-20 10:00:0{},000 INFO | ",
    ],
)
def test_a_date_without_a_year(before, tmp_path):
    path = tmp_path / "server.log"
    path.write_text("".join(f"{before.format(k)}{body(k)}\n" for k in range(6)))
    os.utime(path, (datetime(2024, 12, 24).timestamp(),) * 2)
    frames, coverage, _ = read(tmp_path, None)
    assert frames.batch["time"].to_list() == [datetime(2024, 11, 20, 10, 0, k) for k in range(6)]
    assert coverage.lines_unrecognised == 0


def test_the_zone_of_a_date_without_a_year(tmp_path):
    """Eight hours lie between the collector's clock, in UTC, and the server's."""
    lines = [f"Nov 20 02:00:{k:02d} UTC | {own(k)}\n" for k in range(6)]
    _, _, source = read(tmp_path, "".join(lines))
    assert source.tz == "+08:00"


def test_a_month_or_a_day_alone_is_no_date(tmp_path):
    """Numbers and words beside a clock say no day; the clock counts without one."""
    for before in ("May 10:00:0{} | ", "99-99 10:00:0{} | ", "build 20269920 10:00:0{} | "):
        frames, _, _ = read(tmp_path, "".join(f"{before.format(k)}{body(k)}\n" for k in range(6)))
        assert frames.batch["time"].to_list() == [
            datetime(1970, 1, 1, 10, 0, k) for k in range(6)
        ], before
        assert not frames.batch["time_has_date"].any()


@pytest.mark.parametrize("stamp", [".250", "250", "250000", "250000000", ""])
@pytest.mark.parametrize("prefix", ["[{} DP1 TP3] ", "[{}, DP1, TP3] ", "[{} | DP1 | TP3] "])
def test_an_epoch_in_a_prefix_like_sglangs(stamp, prefix, tmp_path):
    """Lines of the main process have no rank, and are as much the server's own."""
    start = epoch(0)
    lines = [f"[{start}{stamp}] server_args=ServerArgs(model_path='/m')"]
    lines += [prefix.format(f"{start + k}{stamp}") + body(k) for k in range(30)]
    lines += [f"[{start + 31}{stamp}] {SIGQUIT}"]
    frames, coverage, source = read(tmp_path, "\n".join(lines) + "\n")
    ms = 250 if stamp else 0
    assert frames.batch.select("time", "dp_rank", "tp_rank").rows() == [
        (START_UTC + timedelta(seconds=k, milliseconds=ms), 1, 3) for k in range(30)
    ]
    assert frames.startup["kind"].to_list() == ["server_args"]
    assert frames.event["kind"].to_list() == ["sigquit"]
    assert source.tz == "UTC"
    assert coverage.lines_unrecognised == coverage.lines_partial == 0


@pytest.mark.parametrize(
    "prefix", ["[{} DP1 TP3 pid=77] ", "[{} DP1 TP3 scheduler.py:123] ", "[{} DP1,TP3] "]
)
def test_more_than_ranks_in_sglangs_bracket(prefix, tmp_path):
    frames, coverage, _ = read(
        tmp_path, "".join(f"{prefix.format(at(k))}{body(k)}\n" for k in range(6))
    )
    assert frames.batch.select("time", "dp_rank", "tp_rank").rows() == [
        (START + timedelta(seconds=k), 1, 3) for k in range(6)
    ]
    assert coverage.lines_unrecognised == 0
