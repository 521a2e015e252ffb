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
    "%Y年%m月%d日 上午%I:%M:%S": 0,
    "%Y年%m月%d日(金) %H:%M:%S": 0,
    "%Y년 %m월 %d일 오전 %I:%M:%S": 0,
    "%d. November %Y %H:%M:%S": 0,
    "%d de noviembre de %Y %H:%M:%S": 0,
    "%d nov. %Y à %H:%M:%S": 0,
    "%d/nov/%Y:%H:%M:%S": 0,
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


@pytest.mark.parametrize(
    ("name", "month"),
    [
        *((name, 1) for name in ("Januar", "janvier", "janv.", "enero", "ene", "janeiro")),
        *((name, 2) for name in ("Februar", "février", "févr.", "febrero", "fevereiro", "fev")),
        *((name, 3) for name in ("März", "Mär", "Mrz", "mars", "marzo", "março")),
        *((name, 4) for name in ("avril", "avr.", "abril", "abr")),
        *((name, 5) for name in ("Mai", "mai", "mayo", "maio")),
        *((name, 6) for name in ("Juni", "juin", "junio", "junho")),
        *((name, 7) for name in ("Juli", "juillet", "juil.", "julio", "julho")),
        *((name, 8) for name in ("août", "agosto", "ago")),
        *((name, 9) for name in ("sept.", "septembre", "septiembre", "setembro", "set")),
        *((name, 10) for name in ("Oktober", "Okt", "octobre", "octubre", "outubro", "out")),
        *((name, 11) for name in ("novembre", "noviembre", "novembro")),
        *((name, 12) for name in ("Dezember", "Dez", "décembre", "déc.", "diciembre", "dez")),
    ],
)
def test_months_of_other_languages(name, month, tmp_path):
    lines = "".join(f"20 {name} 2026 10:00:{k:02d} {body(k)}\n" for k in range(60))
    frames, coverage, _ = read(tmp_path, lines)
    assert frames.batch["time"].to_list() == [
        datetime(2026, month, 20, 10, 0, k) for k in range(60)
    ]
    assert coverage.lines_unrecognised == 0


def test_a_word_for_a_month_gives_no_time(tmp_path):
    lines = "".join(f"20 Floréal 2026 10:00:{k:02d} - {body(k)}\n" for k in range(6))
    frames, _, _ = read(tmp_path, lines)
    assert frames.batch["time"].to_list() == [None] * 6


@pytest.mark.parametrize(
    ("before", "hour"),
    [
        ("02:00:{:02d} PM ", 14),
        ("2:00:{:02d} am - INFO - ", 2),
        ("[12:00:{:02d}.000 AM TP0] ", 0),
        ("12:00:{:02d}PM | ", 12),
        ("下午02:00:{:02d} | ", 14),
        ("[午前 2:00:{:02d}] ", 2),
    ],
)
def test_a_clock_of_twelve_hours_without_a_date(before, hour, tmp_path):
    lines = "".join(f"{before.format(k)}{body(k)}\n" for k in range(60))
    frames, coverage, _ = read(tmp_path, lines)
    assert frames.batch["time"].to_list() == [datetime(1970, 1, 1, hour, 0, k) for k in range(60)]
    assert not frames.batch["time_has_date"].any()
    assert coverage.lines_unrecognised == 0


def test_midnight_on_a_clock_of_twelve_hours(tmp_path):
    stamps = ["11:59:58 PM", "11:59:59 PM", "12:00:00 AM", "12:00:01 AM"]
    lines = [f"[{stamp} TP0] {body(k)}\n" for k, stamp in enumerate(stamps)]
    frames, _, _ = read(tmp_path, "".join(lines))
    assert frames.batch["time"].to_list() == [
        datetime(1970, 1, 1, 23, 59, 58) + timedelta(seconds=k) for k in range(4)
    ]


@pytest.mark.parametrize(
    "before",
    [
        "02:00:{:02d} PM {}",
        "20.11.26 10:00:{:02d} {}",
        "11/20/2026 10:00:{:02d} - INFO - {}",
        "20. Nov 2026 10:00:{:02d} INFO sglang.srt.scheduler: {}",
        "[20.11. 10:00:{:02d}] INFO: {}",
    ],
)
@pytest.mark.parametrize("other", ["{}", "sglang-1  | {}", "team-a sglang-0 server {}"])
@pytest.mark.parametrize("said", [own, body])
def test_a_half_with_stamps_of_another_kind(before, other, said, tmp_path):
    """It is read whether or not its stamps are; not where the halves stand in each other."""
    one = [other.format(own(k)) for k in range(30)]
    two = [before.format(k, said(k)) for k in range(30)]
    for lines in (one + two, two + one):
        frames, coverage, _ = read(tmp_path, "\n".join(lines) + "\n")
        assert len(frames.batch) == 60
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
