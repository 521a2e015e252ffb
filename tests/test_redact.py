"""What must not reach an output: keys, credentials, addresses, names of people."""

from pathlib import Path

import pytest

from loganalyze import redact, server_args

ARGS = Path(__file__).parent / "data" / "golden" / "server_args"


@pytest.mark.parametrize("path", sorted(ARGS.glob("*.txt")), ids=lambda p: p.stem)
def test_no_secret_of_any_release_survives(path):
    text = path.read_text()
    assert "GOLDEN-SECRET" in text
    kept, removed = redact.args(server_args.parse(text.split("server_args=", 1)[1]))
    assert "GOLDEN-SECRET" not in repr(kept)
    assert "api_key" in removed
    assert kept["api_key"] == redact.REMOVED
    assert kept["mem_fraction_static"] == 0.88


def test_what_is_not_set_and_what_is_no_secret_stays():
    values = {
        "api_key": None,
        "max_total_tokens": 159277,
        "bos_token": "<s>",
        "tokenizer_mode": "auto",
        "schedule_policy": "fcfs",
    }
    assert redact.args(values) == (values, [])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("redis://user:pw@cache:6379/0", "redis://[credentials]@cache:6379/0"),
        ("GET /x?token=abcd1234&n=1", "GET /x?token=[removed]&n=1"),
        ("Authorization: Bearer abcdefgh12345", "Authorization: Bearer [removed]"),
        ("peer 10.1.230.174:3000 closed", "peer [ip]:3000 closed"),
        ("on 0.0.0.0:30000", "on 0.0.0.0:30000"),
        ("/home/alice/models/x", "/home/[user]/models/x"),
        ("key sk-abcdef123456 used", "key [removed] used"),
        ("jwt eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl sent", "jwt [removed] sent"),
        ("-----BEGIN PRIVATE KEY----- MIIE", "[removed]"),
        ("run --api-key abcdef123 --tp 8", "run --api-key [removed] --tp 8"),
        ("?X-Amz-Credential=AAAA1234%2F2026&x=1", "?X-Amz-Credential=[removed]&x=1"),
        ("https://node7.corp.example/v1", "https://[host]/v1"),
    ],
)
def test_text(text, expected):
    assert redact.text(text) == expected


@pytest.mark.parametrize(
    "line",
    [
        "[2026-02-24 12:03:07 TP0] Decode batch, #running-req: 35, #token: 150158, token usage: "
        "0.94, cuda graph: True, gen throughput (token/s): 606.88, #queue-req: 115",
        "[2026-01-10 18:04:05] max_total_num_tokens=451225, chunked_prefill_size=8192, "
        "max_prefill_tokens=16384, context_len=131072",
        "KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_tokens_gained: 311, "
        "#new_token_ratio: 0.4213 -> 0.9871",
    ],
)
def test_statistics_lines_are_quoted_as_they_stand(line):
    assert redact.text(line) == line
