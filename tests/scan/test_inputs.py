"""Which files are inputs, and how their contents are told apart."""

import io
import os
import sys
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loganalyze.scan import inputs, local, work


def names(paths, out="/nowhere"):
    return [os.path.basename(f.name) for f in inputs.find([str(p) for p in paths], out)]


@pytest.fixture
def tree(tmp_path):
    for name in ("b.log", "a/x.log", "a/y.out", ".hidden.log", ".git/z.log", "out/done.log"):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("text\n")
    return tmp_path / "in"


def test_a_folder_gives_its_files_without_hidden_and_own_ones(tree):
    (tree / "empty.log").touch()
    (tree / "empty.py").touch()  # nobody's log
    assert names([tree], str(tree / "out")) == ["b.log", "empty.log", "x.log", "y.out"]


def test_each_file_counts_once_under_its_first_name(tree):
    (tree / "link.log").symlink_to(tree / "b.log")
    assert names([tree / "b.log", tree / "a", tree / "a" / "x.log", tree], str(tree / "out")) == [
        "b.log",
        "x.log",
        "y.out",
    ]


def test_linked_folders_are_searched_once_and_loops_end(tree, tmp_path):
    (tmp_path / "disk" / "sub").mkdir(parents=True)
    (tmp_path / "disk" / "sub" / "far.log").write_text("text\n")
    (tree / "a" / "disk").symlink_to(tmp_path / "disk")
    (tree / "a" / "again").symlink_to(tmp_path / "disk")
    (tree / "a" / "loop").symlink_to(tree)
    (tmp_path / "disk" / "sub" / "back").symlink_to(tree / "a")
    (tree / "a" / "self").symlink_to("self")
    found = {f.name: f.error for f in inputs.find([str(tree)], str(tree / "out"))}
    assert found == {
        str(tree / "b.log"): "",
        str(tree / "a" / "x.log"): "",
        str(tree / "a" / "y.out"): "",
        str(tree / "a" / "again" / "sub" / "far.log"): "",
        str(tree / "a" / "self"): found[str(tree / "a" / "self")],
    }
    assert "cannot be opened" in found[str(tree / "a" / "self")]


def test_patterns(tree):
    assert names([tree / "*" / "*.log"]) == ["x.log", "done.log"]
    assert names([tree / "*" / "*.log"], str(tree / "out")) == ["x.log"]
    assert names([tree / "**" / "x.*"]) == ["x.log"]
    (none,) = inputs.find([str(tree / "*.none")], "/nowhere")
    assert none.error == "no file fits this pattern"
    (tree / "odd[1].log").write_text("text\n")  # a name that looks like a pattern
    assert names([tree / "odd[1].log"]) == ["odd[1].log"]


def test_what_is_not_there_or_no_file_says_so(tree):
    (tree / "broken.log").symlink_to(tree / "gone")
    os.mkfifo(tree / "pipe.log")
    found = {f.name: f for f in inputs.find([str(tree), str(tree / "pipe.log")], "/nowhere")}
    assert found[str(tree / "broken.log")].error == "is a link to nothing"
    assert found[str(tree / "pipe.log")].error == "is not a file"
    (gone,) = inputs.find([str(tree / "nothing.log")], "/nowhere")
    assert gone.error == "no such file"


@pytest.mark.parametrize(
    ("name", "log"),
    [
        ("server.log", True),
        ("server.log.3", True),
        ("server.LOG.gz", True),
        ("slurm-123.out", True),
        ("rank0.err.1", True),
        ("catalog", True),
        ("old.tar.zst", True),
        ("model.safetensors", False),
        ("picture.png", False),
        ("/logs/model.bin", False),
    ],
)
def test_names_of_logs(name, log):
    assert inputs.looks_like_log(name) is log


@given(st.binary(max_size=3_000), st.integers(0, 3_000))
def test_hashes_of_a_start_and_the_whole(data, at):
    start, whole, size = inputs.hashes(io.BytesIO(data), min(at, len(data)))
    assert start == sha256(data[:at]).hexdigest()
    assert (whole, size) == (sha256(data).hexdigest(), len(data))


@pytest.mark.parametrize("size", [1, 5_000, 81_920, 81_921, 400_000, 3_000_000])
def test_a_fingerprint_sees_size_head_tail_and_pieces(tmp_path, size):
    path = tmp_path / "a.log"
    data = bytearray(os.urandom(size))
    path.write_bytes(data)
    before = inputs.fingerprint(str(path), size)
    # The fingerprint of a longer file's first part is that of the part.
    path.write_bytes(data + b"more")
    assert inputs.fingerprint(str(path), size) == before
    assert inputs.fingerprint(str(path), size + 4) != before
    for place in {0, min(100, size - 1), size - 1, size * 4 // 9}:
        changed = data.copy()
        changed[place] ^= 1
        path.write_bytes(changed)
        assert inputs.fingerprint(str(path), size) != before, place


def test_a_file_that_shrank_has_no_fingerprint(tmp_path):
    (tmp_path / "a.log").write_text("short")
    with pytest.raises(inputs.InputError, match="shorter"):
        inputs.fingerprint(str(tmp_path / "a.log"), 100)


def test_run_ids_are_safe_as_file_names_and_differ():
    ids = {work.run_id(n) for n in ("a/s.log", "b/s.log", "a/s log", "../..", "a!b/s.log", "ü/é")}
    assert len(ids) == 6
    assert all(i.isascii() and "/" not in i and not i.startswith(".") for i in ids)


@pytest.mark.parametrize(
    ("cores", "memory", "groups", "jobs"),
    [(8, 64 << 30, 100, 8), (8, 64 << 30, 3, 3), (8, 2_100_000_000, 100, 3), (8, 1, 100, 1)],
)
def test_jobs_are_bounded_by_cores_memory_and_work(cores, memory, groups, jobs):
    assert local.jobs_for(cores, memory, groups) == jobs


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_is_less_than_the_machine_has():
    assert 0 < local.memory() < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
