"""The `server_args=` line, in both forms, with everything that a repr may hold."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loganalyze import server_args

GOLDEN = Path(__file__).parent / "data" / "golden"


def printed_args():
    """Yield (release, text, arguments that went in) for every golden release that prints them."""
    for path in sorted(GOLDEN.glob("*.expected.jsonl")):
        lines = (
            path.with_name(path.name.replace(".expected.jsonl", ".log")).read_text().split("\n")
        )
        for record in map(json.loads, path.read_text().splitlines()):
            if record["kind"] == "server_args":
                text = lines[record["line"] - 1].split("server_args=", 1)[1]
                yield pytest.param(text, record["args"], id=record["version"])


@pytest.mark.parametrize(("text", "args"), list(printed_args()))
def test_every_release_reads_back_what_went_in(text, args):
    parsed = server_args.parse(text)
    for name, value in args.items():
        if name in ("attention_backend", "sampling_backend"):  # replaced before printing
            continue
        got = parsed[name]
        assert (list(got) if isinstance(got, tuple) else got) == value, name


def test_quotes_commas_and_brackets_stay_inside_their_value():
    text = "ServerArgs(a='it\\'s, (odd)=1', b=\"x], y\", c=[1, (2, 3)], d={'k': 'v, w'}, e=None)"
    assert server_args.parse(text) == {
        "a": "it's, (odd)=1",
        "b": "x], y",
        "c": [1, (2, 3)],
        "d": {"k": "v, w"},
        "e": None,
    }


def test_values_that_are_no_literals_stay_text():
    text = "ServerArgs(lora=LoRARef(name='a', path='b'), backend=<Backend.FA3: 'fa3'>, tp_size=8)"
    assert server_args.parse(text) == {
        "lora": "LoRARef(name='a', path='b')",
        "backend": "<Backend.FA3: 'fa3'>",
        "tp_size": 8,
    }


def test_nothing_is_evaluated():
    text = "ServerArgs(a=__import__('os').getpid(), b=1)"
    assert server_args.parse(text) == {"a": "__import__('os').getpid()", "b": 1}


def test_a_cut_line_keeps_its_whole_fields():
    assert server_args.parse("ServerArgs(tp_size=8, mem_fraction_static=0.8") == {"tp_size": 8}
    assert server_args.parse("{'tp_size': 8, 'model_path': '/mod") == {"tp_size": 8}


@pytest.mark.parametrize("text", ["", "None", "[1, 2]", "ServerArgs"])
def test_other_text_gives_nothing(text):
    assert server_args.parse(text) == {}


@given(st.text(max_size=300))
def test_any_text_is_read_without_an_error(text):
    server_args.parse("ServerArgs(" + text)
    server_args.parse("{" + text)
