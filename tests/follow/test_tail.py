"""Files that grow, are rotated, cut, late; and pipes."""

import os

import pytest

from loganalyze.follow.tail import FileTail, Lines, PipeTail
from loganalyze.sources import MAX_LINE


@pytest.fixture
def log(tmp_path):
    return tmp_path / "server.log"


@pytest.fixture
def tail(log):
    one = FileTail(str(log))
    yield one
    one.finish()


def everything(tail):
    """Read until nothing comes any more, also across one rotation."""
    out = b""
    for _ in range(6):
        out += tail.read()
    return out


def append(log, data):
    with log.open("ab") as file:
        file.write(data)


def test_lines_as_they_come(log, tail):
    append(log, b"one\n")
    assert tail.read() == b"one\n"
    assert tail.read() == b""
    append(log, b"two\nthree\n")
    assert tail.read() == b"two\nthree\n"


def test_half_a_line_is_no_line_yet(log, tail):
    append(log, b"one\ntw")
    assert tail.read() == b"one\n"
    append(log, b"o")
    assert tail.read() == b""
    append(log, b"\nthr")
    assert tail.read() == b"two\n"
    assert tail.finish() == b"thr"


def test_a_file_that_is_not_there_yet(log, tail):
    assert tail.read() == b""
    assert tail.waiting
    append(log, b"one\n")
    assert tail.read() == b"one\n"
    assert not tail.waiting


def test_rotation_by_rename(log, tail):
    append(log, b"old 1\n")
    assert tail.read() == b"old 1\n"
    append(log, b"old 2\n")
    log.rename(log.with_suffix(".1"))
    append(log, b"new 1\n")
    assert everything(tail) == b"old 2\nnew 1\n"
    assert tail.rotations == 1


def test_lines_written_after_the_rename_to_the_old_file_are_not_lost(log, tail):
    append(log, b"old 1\n")
    assert tail.read() == b"old 1\n"
    old = log.with_suffix(".1")
    log.rename(old)
    append(old, b"old 2\n")  # the server still has it open
    assert everything(tail) == b"old 2\n"
    append(log, b"new 1\n")
    assert everything(tail) == b"new 1\n"


def test_half_a_line_before_a_rotation_ends_there(log, tail):
    append(log, b"old 1\nhal")
    assert tail.read() == b"old 1\n"
    log.rename(log.with_suffix(".1"))
    append(log, b"new 1\n")
    assert everything(tail) == b"hal\nnew 1\n"


def test_rotation_by_truncation(log, tail):
    append(log, b"a long first line\n")
    assert tail.read() == b"a long first line\n"
    log.write_bytes(b"new\n")
    assert everything(tail) == b"new\n"
    assert tail.rotations == 1


def test_truncation_that_has_already_grown_past_the_old_end(log, tail):
    append(log, b"old\n")
    assert tail.read() == b"old\n"
    log.write_bytes(b"another, longer first line\nand more\n")
    assert everything(tail) == b"another, longer first line\nand more\n"


def test_truncation_to_nothing(log, tail):
    append(log, b"old\n")
    tail.read()
    log.write_bytes(b"")
    assert everything(tail) == b""
    append(log, b"new\n")
    assert everything(tail) == b"new\n"


def test_rotation_twice(log, tail):
    said = b""
    for k in range(3):
        append(log, b"%d\n" % k)
        said += everything(tail)
        log.rename(log.with_suffix(f".{k}"))
    assert said == b"0\n1\n2\n"


def test_more_than_one_read_holds_is_not_caught_up(log, tail):
    append(log, b"x" * 1000 + b"\n")
    with log.open("ab") as file:
        file.write((b"y" * 999 + b"\n") * 2500)
    assert tail.read()
    assert not tail.caught_up
    while not tail.caught_up:
        tail.read()


def test_a_file_that_may_not_be_read_is_an_error(tmp_path):
    with pytest.raises(IsADirectoryError):
        FileTail(str(tmp_path)).read()


def test_an_endless_line_keeps_its_head_and_tail_only():
    lines = Lines()
    assert lines.push(b"head " + b"x" * MAX_LINE) == b""
    whole = lines.push(b" tail\n")
    assert whole.startswith(b"head ")
    assert whole.endswith(b" tail\n")
    assert len(whole) < 20_000


def test_a_pipe_until_its_end():
    out, into = os.pipe()
    pipe = PipeTail(out)
    try:
        assert pipe.read() == b""
        os.write(into, b"one\ntw")
        assert pipe.read() == b"one\n"
        assert not pipe.ended
        os.write(into, b"o\nlast")
        os.close(into)
        assert pipe.read() == b"two\n"
        assert pipe.read() == b""
        assert pipe.ended
        assert pipe.finish() == b"last"
    finally:
        os.close(out)
