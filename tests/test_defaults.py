"""Defaults of server arguments: known where all releases that a log could come from agree."""

import ast
import re
from pathlib import Path

import pytest

from loganalyze import defaults, releases, server_args

GOLDEN = Path(__file__).parent / "data" / "golden" / "server_args"


def test_a_default_that_changed_is_known_on_both_sides_of_the_change_only():
    # schedule_policy: lpm in 0.4.1.post7, fcfs in 0.4.4; nothing between was looked at.
    def of(*span):
        return defaults.known(["schedule_policy"], span)

    assert of("0.3.6", "0.4.1") == ({"schedule_policy": "lpm"}, ())
    assert of("0.4.4", "0.5.23") == ({"schedule_policy": "fcfs"}, ())
    assert of("0.4.2", "0.4.2") == ({}, ())
    assert of("0.4.1", "0.4.6") == ({}, ())


@pytest.mark.parametrize(
    "name", ["mem_fraction_static", "chunked_prefill_size", "max_running_requests"]
)
def test_what_sglang_fills_in_from_the_hardware_has_no_default(name):
    assert defaults.known([name], ("0.4.6", "0.5.23")) == ({}, (name,))
    assert defaults.known([name], None) == ({}, ())  # releases before 0.1.26 are not known


def test_the_printed_arguments_narrow_the_releases():
    # hicache_write_policy changed between 0.5.1 and 0.5.3; asr_max_buffer_seconds is of 0.5.15.
    name = "hicache_write_policy"
    assert name not in defaults.known([name], None)[0]
    values, _ = defaults.known([name, "asr_max_buffer_seconds"], None)
    assert values[name] == "write_through"


def test_an_argument_of_no_known_release_is_not_known():
    assert defaults.known(["my_patch"], ("0.5.9", "0.5.9")) == ({}, ())
    # A fork that has arguments of releases far apart still gets what never changed.
    values, _ = defaults.known(["file_storage_pth", "asr_max_buffer_seconds", "tp_size"], None)
    assert values["tp_size"] == 1


#: What stood on the command line of the golden servers.
SET = {
    "context_length", "json_model_override_args", "schedule_policy", "tp_size", "host",
    "ssl_keyfile", "ssl_certfile", "ssl_keyfile_password", "api_key", "admin_api_key",
    "log_requests", "enable_metrics",
}  # fmt: skip
#: Defaults that the releases work out in code.
NOT_LITERAL = {
    "uvicorn_access_log_exclude_prefixes",
    "speculative_ngram_capacity",
    "encoder_transfer_backend",
    "http2_initial_connection_window_size",
}


@pytest.mark.parametrize("release", ["0.5.15", "0.5.18", "0.5.23"])
def test_what_differs_is_what_was_set(release):
    text = (GOLDEN / f"{release}.txt").read_text()
    args = server_args.parse(text.split("server_args=", 1)[1])
    values, computed = defaults.known(args, (release, release))
    assert {n for n, v in values.items() if args[n] != v} == SET
    unknown = {n for n in args if not n.startswith("_")} - {*values} - {*computed}
    assert unknown <= {"model_path", *NOT_LITERAL}


def test_the_table_names_known_releases_and_literals_alone():
    text = (Path(defaults.__file__).with_name("defaults.toml")).read_text()
    rows = re.findall(r'"([\w.]+\.\.[\w.]+)" = ("(?:[^"\\]|\\.)*")', text)
    assert len(rows) > 500
    for span, value in rows[1:]:  # the first is the comment's example
        assert releases.parse_range(span)
        literal = ast.literal_eval(value)
        if literal != "computed":
            ast.literal_eval(literal)
