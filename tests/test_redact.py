"""What must not reach an output: keys, credentials, addresses, hosts, names of people."""

import re
from collections import Counter
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loganalyze import redact, server_args
from loganalyze.model import Finding
from loganalyze.redact import Redactor
from loganalyze.rules import all_rules

ARGS = Path(__file__).parent / "data" / "golden" / "server_args"


@pytest.mark.parametrize("path", sorted(ARGS.glob("*.txt")), ids=lambda p: p.stem)
def test_no_secret_of_any_release_survives(path):
    text = path.read_text()
    assert "GOLDEN-SECRET" in text
    kept, removed = Redactor().args(server_args.parse(text.split("server_args=", 1)[1]))
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
        "host": "0.0.0.0",
        "lora_paths": [1, ["a"]],
    }
    assert Redactor().args(values) == (values, [])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("redis://user:pw@cache:6379/0", "redis://[credentials]@host-1:6379/0"),
        ("GET /x?token=abcd1234&n=1", "GET /x?token=[removed]&n=1"),
        ("Authorization: Bearer abcdefgh12345", "Authorization: Bearer [removed]"),
        ("peer 10.1.230.174:3000 closed", "peer ip-1:3000 closed"),
        ("10.1.2.3 to 10.1.2.4 to 10.1.2.3.", "ip-1 to ip-2 to ip-1."),
        ("from 2001:db8::1 and fe80::1", "from ip-1 and ip-2"),
        ("on 0.0.0.0:30000", "on 0.0.0.0:30000"),
        ("/home/alice/models/x", "~/models/x"),
        ("/lustre/home/alice/x, C:\\Users\\bob\\y", "~/x, ~\\y"),
        ("/home/alice/x then /scratch/alice/y", "~/x then /scratch/[user]/y"),
        ("/root/.cache/x", "~/.cache/x"),
        ("key sk-abcdef123456 used", "key [removed] used"),
        ("AKIAIOSFODNN7EXAMPLE or nvapi-abcdef123456", "[removed] or [removed]"),
        (
            "skip_tokenizer_init=True, skip_server_warmup",
            "skip_tokenizer_init=True, skip_server_warmup",
        ),
        ("Authorization: Token abcdef123456", "Authorization: Token [removed]"),
        ("Cookie: session=abcdef; path=/", "Cookie: [removed]"),
        (
            "password=12345678 pwd=x1y2 DB_PASS=hunter2",
            "password=[removed] pwd=[removed] DB_PASS=[removed]",
        ),
        ('{"secret_key": "two words"}', '{"secret_key": "[removed]"}'),
        ("--api-key 'two words' --port 3", "--api-key [removed] --port 3"),
        ("private_key=None, #token: 150151", "private_key=None, #token: 150151"),
        ("jwt eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl sent", "jwt [removed] sent"),
        ("-----BEGIN PRIVATE KEY----- MIIE", "[removed]"),
        ("run --api-key abcdef123 --tp 8", "run --api-key [removed] --tp 8"),
        ("?X-Amz-Credential=AAAA1234%2F2026&x=1", "?X-Amz-Credential=[removed]&x=1"),
        ("https://node7.corp.example/v1", "https://host-1/v1"),
        ("https://huggingface.co/Qwen", "https://huggingface.co/Qwen"),
        ("http://localhost:30000/x", "http://localhost:30000/x"),
        ("node-07.gpu.lan and node-07 and node-08", "host-1 and host-1 and host-2"),
        ("pod sglang-7d9f8b6c5d-x2x4z gone", "pod host-1 gone"),
        ("ip-10-0-1-23.ec2.internal is down", "host-1 is down"),
        ("gpu07:123:456 [0] NCCL INFO x", "host-1:123:456 [0] NCCL INFO x"),
        ("alice@head7 asked", "[user]@host-1 asked"),
        ("environ({'HOSTNAME': 'athena', 'A': 'b'})", "environ({'HOSTNAME': 'host-1', 'A': 'b'})"),
        ("SLURM_NODELIST=athena[01-04],zeus x", "SLURM_NODELIST=host-1 x"),
        ("USER=alice HOME=/home/alice", "USER=[user] HOME=~"),
        ("has failed to connect to [athena]:29500", "has failed to connect to [host-1]:29500"),
        ("trying to connect to (athena, 29500)", "trying to connect to (host-1, 29500)"),
        ("Failed to connect to athena:30000", "Failed to connect to host-1:30000"),
        ("srun: error: athena: task 0: Killed", "srun: error: host-1: task 0: Killed"),
        ("['x', '--api-key', 'Zx9qwerty']", "['x', '--api-key', [removed]]"),
        ("Incorrect API key provided: Zx9qwerty.", "Incorrect API key provided: [removed]"),
        ("{'role': 'user', 'content': 'of me'}", "{'role': 'user', 'content': [removed]}"),
        ("ValueError: Input 'tell me' too long", "ValueError: Input [removed] too long"),
        ("input_value={'a': 'of me'}, input_type=dict", "input_value=[removed], input_type=dict"),
        ('{"hostname": "athena", "log": "x"}', '{"hostname": "host-1", "log": "x"}'),
    ],
)
def test_text(text, expected):
    assert Redactor().text(text) == expected
    assert Redactor(keep=True).text(text) == text


@pytest.mark.parametrize(
    "line",
    [
        "[2026-02-24 12:03:07 TP0] Decode batch, #running-req: 35, #token: 150158, token usage: "
        "0.94, cuda graph: True, gen throughput (token/s): 606.88, #queue-req: 115",
        "[2026-01-10 18:04:05] max_total_num_tokens=451225, chunked_prefill_size=8192, "
        "max_prefill_tokens=16384, context_len=131072",
        "KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_tokens_gained: 311, "
        "#new_token_ratio: 0.4213 -> 0.9871",
        "c10::add at::nn in sglang.srt.managers.io, Qwen3-235B-A22B-Instruct-2507, nodes=2 node=1",
        "Raise --max-total-tokens 5000; SGLang 0.5.9.post1; server.log:12; sglang/srt/x.py",
    ],
)
def test_lines_without_anything_private_stay_as_they_stand(line):
    assert Redactor().line(line) == line


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("[pod/sglang-0/sglang] [2026", "[pod/host-1/sglang] [2026"),
        ("Jan  5 10:00:00 athena sglang[12]: x", "Jan  5 10:00:00 host-1 sglang[12]: x"),
        ("node3: [2026-01-05 10:00:00] x", "host-1: [2026-01-05 10:00:00] x"),
        ("[rank0]: [2026-01-05 10:00:00] x", "[rank0]: [2026-01-05 10:00:00] x"),
        ("3: [2026-01-05 10:00:00] x", "3: [2026-01-05 10:00:00] x"),
        (
            "2026-01-05T10:00:00Z ecs/h100box/0a1b2c3d4e5f [2026",
            "2026-01-05T10:00:00Z host-1/host-2/host-3 [2026",
        ),
        ("(gpu-a, rank=1, pid=7, ip=10.1.2.3) x", "(host-1, rank=1, pid=7, ip=ip-1) x"),
        ("Jan  5 10:00:00 rack7 [2026", "Jan  5 10:00:00 host-1 [2026"),
        (
            '{"docker_id": "0a1b", "container_name": "/h100-sglang-1", "log": "x"}',
            '{"docker_id": "host-1", "container_name": "/host-2", "log": "x"}',
        ),
        (
            '{"host": {"name": "athena"}, "_MACHINE_ID": "ff"}',
            '{"host": {"name": "host-1"}, "_MACHINE_ID": "host-2"}',
        ),
    ],
)
def test_the_host_that_a_wrapper_names(line, expected):
    assert Redactor().line(line) == expected


def test_a_host_has_one_name_everywhere_and_two_hosts_stay_apart():
    redactor = Redactor()
    kept, removed = redactor.args(
        {"dist_init_addr": "head-a:5000", "model_path": "/home/alice/m", "peer_hosts": ["b-2"]}
    )
    assert kept == {"dist_init_addr": "host-1:5000", "model_path": "~/m", "peer_hosts": ["host-2"]}
    assert removed == ["dist_init_addr", "peer_hosts"]
    assert redactor.line("[pod/b-2/c] head-a lost") == "[pod/host-2/c] host-1 lost"
    assert redactor.text("head-a.gpu.lan") == "host-1"


def test_the_value_of_a_secret_argument_is_taken_out_of_every_text():
    redactor = Redactor()
    redactor.args({"api_key": "correct-horse"})
    assert redactor.text("got correct-horse.") == "got [removed]."


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("/home/alice/logs/server-abc.log", "~/logs/server-abc.log"),
        ("logs/node07_prefill_w0.out", "logs/host-1_prefill_w0.out"),
        ("logs/sglang_decode_w1.err", "logs/sglang_decode_w1.err"),
        ("/var/log/pods/ns_sglang-0_4be43f5b/c/0.log", "/var/log/pods/ns_host-1_4be43f5b/c/0.log"),
        ("sglang-7d9f8b6c5d-x2x4z.log.1.gz", "host-1.log.1.gz"),
        ("-", "-"),
    ],
)
def test_the_name_of_a_log_stays_useful(name, expected):
    assert Redactor().name(name) == expected


def test_two_logs_never_get_one_name():
    redactor = Redactor()
    assert redactor.name("/home/alice/server.log") == "~/server.log"
    assert redactor.name("/home/bob/server.log") == "~/server.log (2)"
    assert redactor.name("/home/alice/server.log") == "~/server.log"
    assert redactor.text("/home/bob/server.log: no such file") == "~/server.log (2): no such file"


def test_a_whole_value_keeps_its_types():
    finding = Finding("10.1.2.3 left", (), limits={"hold_s": 30.0})
    clean = Redactor().whole(finding)
    assert clean == Finding("ip-1 left", (), limits={"hold_s": 30.0})
    assert Redactor().whole({"t": datetime(2026, 1, 5), "n": [1, None], "b": True}) == {
        "t": datetime(2026, 1, 5),
        "n": [1, None],
        "b": True,
    }


def test_beyond_many_addresses_each_still_has_one_name(monkeypatch):
    monkeypatch.setattr(redact, "MAX_NUMBERED", 2)
    redactor = Redactor()
    said = [redactor.text(f"10.0.0.{k}") for k in (1, 2, 3, 4, 3, 1)]
    assert (said[0], said[1], said[5]) == ("ip-1", "ip-2", "ip-1")
    assert said[2] == said[4] != said[3]
    assert re.fullmatch("ip-[0-9a-f]{12}", said[2])
    assert Redactor().text(said[2]) == said[2]  # what was cleaned stays as it is


def test_a_frame_loses_addresses_and_keeps_ports():
    table = pl.DataFrame(
        {
            "source": ["/home/alice/a.log"] * 3,
            "client": ["10.0.0.1:5000", "10.0.0.2:5000", None],
            "path": ["/generate?api_key=abcd1234", "/health", None],
            "status": [200, 200, 500],
        }
    )
    assert Redactor().frame(table).rows() == [
        ("~/a.log", "ip-1:5000", "/generate?api_key=[removed]", 200),
        ("~/a.log", "ip-2:5000", "/health", 200),
        ("~/a.log", None, None, 500),
    ]
    assert Redactor(keep=True).frame(table).equals(table)


def test_what_was_removed_is_counted():
    redactor = Redactor()
    redactor.text("10.1.2.3 and /home/alice/x and 10.1.2.3")
    assert redactor.removed == {"IP addresses": 2, "home folders": 1}


#: Short words of these make up names that begin, end and hold one another.
_BITS = st.sampled_from(["a", "b1", "-", "/", ".", "é", " ", "_"])


@given(
    st.lists(st.lists(_BITS, min_size=1, max_size=5).map("".join), max_size=4, unique=True),
    st.lists(_BITS, max_size=14).map("".join),
)
def test_a_word_is_replaced_where_it_stands_alone_the_longest_first(words, text):
    words = [w for w in words if re.search("[a-z0-9-]", w) and not (w[0] == "-" or w[-1] == "-")]
    ours, said = redact._Words(), Counter()
    for number, word in enumerate(words):
        ours.add(word, f"<{number}>", "words")
    alone = [
        (r"(?<![A-Za-z0-9-])" if w[0].isalnum() else "")
        + re.escape(w)
        + (r"(?![A-Za-z0-9-])" if w[-1].isalnum() else "")
        for w in sorted(words, key=lambda w: -len(w))
    ]
    pattern = re.compile("|".join(alone) or r"(?!)")
    assert ours.replace(text, said) == pattern.sub(lambda m: f"<{words.index(m[0])}>", text)
    assert said["words"] == len(pattern.findall(text))


def test_a_word_that_ends_in_a_dash_is_found_within_a_run():
    ours = redact._Words()
    ours.add("-x-", "<>")
    assert ours.replace("a-x-b", Counter()) == "a<>b"


@pytest.mark.parametrize(
    ("client", "shown"),
    [
        ("2001:db8:85a3:1:2:8a2e:370:7334:54321", "ip-1:54321"),
        ("2001:db8:85a3:1:2:8a2e:370:7334", "ip-1"),
        ("2001:DB8::1", "ip-1"),
        ("10.1.2.3:80", "ip-1:80"),
        ("127.0.0.1:80", "127.0.0.1:80"),
    ],
)
def test_the_last_group_of_an_address_is_no_port(client, shown):
    table = pl.DataFrame({"client": [client]})
    assert Redactor().frame(table)["client"].to_list() == [shown]
    assert Redactor().text(f"from {client} it came") == f"from {shown} it came"


def test_a_host_that_a_wrapper_named_is_in_no_run_of_an_archive():
    redactor = Redactor()
    shown = [
        redactor.run({"host": host, "log": log})["host"]
        for host, log in (
            ("athena sglang[42]", "/logs/s.log"),
            ("logs", "/logs/s.log"),
            ("gpu-07", "/gpu-07/s.log"),
            ("Actor pid=7, ip=10.1.2.3", "/logs/s.log"),
            ("/home/alice/athena/s.log", "/logs/s.log"),
        )
    ]
    others = ["host-3 pid=7, ip=ip-1", "host-4/s.log"]
    assert shown == ["host-1 sglang[42]", "logs", "host-2", *others]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a new one its full min(max_new_tokens, 4096).", None),
        ("at most f(window, 128) of (page, 64) and zeros(heads, 4096)", None),
        ("the connection pool holds min(clients, 4096)", None),
        ("Connect call failed ('10.0.0.1', 8000)", "Connect call failed ('ip-1', 8000)"),
        ("OSError: ('athena', 29500)", "OSError: ('host-1', 29500)"),
        ("any network address of (athena, 29500).", "any network address of (host-1, 29500)."),
    ],
)
def test_two_words_in_brackets_are_a_peer_where_something_tells_it(text, expected):
    assert Redactor().text(text) == (expected or text)


def test_the_programs_own_sentences_stay_as_they_were_written():
    redactor = Redactor()
    written = [text for one in all_rules().values() for text in one.sections.values()]
    assert [text for text in written if redactor.text(text) != text] == []
    finding = Finding("10.1.2.3 left", (), code="KVC001", name="x", why="as (athena.local, 80)")
    assert redactor.whole(finding) == replace(finding, summary="ip-1 left")
    assert redactor.removed == {"IP addresses": 1}


def test_a_host_is_counted_where_it_is_taken_out():
    redactor = Redactor()
    assert redactor.name("pd_decode_backlog.log") == "pd_decode_backlog.log"
    assert redactor.text("GET https://github.com/x, localhost:80 by host-3")
    assert redactor.removed == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x(prompt=['first', 'of me'], n=1)", "x(prompt=[removed], n=1)"),
        ("text='it\\'s of me' n=1", "text=[removed] n=1"),
        ('text="he said \\"of me\\"" n=1', "text=[removed] n=1"),
        ("text=['a b', \"it's of me\"], n=1", "text=[removed], n=1"),
        (
            '{\\"text\\": \\"of \\\\\\"me\\\\\\"\\", \\"n\\": 1}',
            '{\\"text\\": [removed], \\"n\\": 1}',
        ),
        ("ValueError: prompt: of me", "ValueError: prompt: [removed]"),
        (
            "[(b'x-api-key', b'Zx9q'), (b'a', b'b')]",
            "[(b'x-api-key', b'[removed]'), (b'a', b'b')]",
        ),
        ("export WANDB_API_KEY Zxqwerty", "export WANDB_API_KEY [removed]"),
        ("['--host','athena','-v']", "['--host','host-1','-v']"),
        ("--host athena --dist-init-addr athena:50", "--host host-1 --dist-init-addr host-1:50"),
        ("Raise --nodes and --host to see", "Raise --nodes and --host to see"),
        ("/scratch/alice/x /scratch/models/x", "/scratch/[user]/x /scratch/models/x"),
        ("logs/home/alice/x", "~/x"),
        ("Failed to send to athena:1234", "Failed to send to host-1:1234"),
        ("raised from scheduler.py:1234", "raised from scheduler.py:1234"),
        ("x_seed_instance_ip='athena'", "x_seed_instance_ip='host-1'"),
        ("GET s3://b-1/x?sig=ab&u=me failed", "GET s3://host-1/x?[removed] failed"),
    ],
)
def test_what_tracebacks_quote(text, expected):
    assert Redactor().text(text) == expected


def test_arguments_that_name_a_peer_and_what_a_query_asks_for():
    values = {
        "remote_instance_weight_loader_seed_instance_ip": "athena",
        "mooncake_master": "zeus:5",
    }
    assert list(Redactor().args(values)[0].values()) == ["host-1", "host-2:5"]
    table = pl.DataFrame({"path": ["/x?key=abc&q=of+me&z", "/x?of+me", "/generate"]})
    assert Redactor().frame(table)["path"].to_list() == [
        "/x?key=[removed]&q=[removed]&[removed]",
        "/x?[removed]",
        "/generate",
    ]
