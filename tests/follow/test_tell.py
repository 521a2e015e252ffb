"""Commands, webhooks, metrics: what is told, how often, and what cannot happen."""

import json
import threading
import urllib.error
import urllib.request
from datetime import datetime
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from loganalyze.errors import UsageError
from loganalyze.follow import Change, StatusLine, notify
from loganalyze.follow.gauges import Now
from loganalyze.follow.metrics import Server, render
from loganalyze.model import Episode, Finding, Severity
from loganalyze.report import follow_json, follow_text

NOW = Now(datetime(2026, 2, 24, 12), 7, 0.94, 35, 115, 606.88, 17.34, 180.0)
FINDING = Finding(
    "KV pool full; $(touch owned) `id` \x1b[31m",
    [Episode(datetime(2026, 2, 24, 11, 50), datetime(2026, 2, 24, 12), 1, 7, None, "a.log")],
    severity=Severity.CRITICAL,
    code="KV001",
    name="kv-saturation",
    session=1,
)
CHANGE = Change("alert", NOW.time, "saturated", "healthy", ("KV001",), NOW, FINDING)


def status(**changes):
    trail = {name: [0.1, None, 0.9] for name in ("usage", "running", "waiting", "rate")}
    values = {
        "names": ("a.log",),
        "state": "saturated",
        "since": NOW.time,
        "active": (FINDING,),
        "now": NOW,
        "trail": trail,
        "lines": 7,
        "raised": {"KV001": 2},
        "capacity_tokens": 159277,
    }
    return StatusLine(**{**values, **changes})


# -- commands -----------------------------------------------------------------------------


def test_a_command_gets_the_finding_on_its_standard_input(tmp_path):
    out = tmp_path / "found.json"
    notify.Command(f"tee {out}").tell(follow_json.alert(CHANGE))
    told = json.loads(out.read_text())
    assert told["event"] == "alert"
    assert told["code"] == "KV001"
    assert told["severity"] == "critical"
    assert told["episodes"][0]["first_line"] == 1


def test_text_of_a_log_is_never_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "found.json"
    notify.Command(f"tee {out}").tell(follow_json.alert(CHANGE))
    assert not (tmp_path / "owned").exists()
    assert "$(touch owned)" in json.loads(out.read_text())["summary"]


def test_words_of_a_command_are_not_expanded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    notify.Command("tee '$HOME.txt' ; touch also").tell("{}")
    assert (tmp_path / "$HOME.txt").exists()
    assert (tmp_path / ";").exists()  # a word like any other: there is no shell
    assert (tmp_path / "touch").exists()


@pytest.mark.parametrize("command", ["", "  ", "echo 'open"])
def test_a_command_that_cannot_be_split(command):
    with pytest.raises(UsageError):
        notify.Command(command)


def test_a_command_that_fails_or_hangs_is_said():
    with pytest.raises(OSError, match="status 1"):
        notify.Command("false").tell("{}")
    with pytest.raises(OSError, match="longer than"):
        notify.Command("sleep 5", timeout_s=0.1).tell("{}")
    with pytest.raises(FileNotFoundError):
        notify.Command("/does/not/exist").tell("{}")


# -- webhooks -----------------------------------------------------------------------------


@pytest.fixture
def hook():
    """A server that refuses as often as `answers` says, and keeps what it took."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            code = self.server.answers.pop(0) if self.server.answers else 200
            self.server.asked += 1
            if code == 200:
                self.server.taken.append(json.loads(body))
            self.send_response(code)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    server.answers, server.taken, server.asked = [], [], 0
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    server.url = f"http://127.0.0.1:{server.server_port}/secret"
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_webhook_gets_the_finding(hook):
    notify.Webhook(hook.url).tell(follow_json.alert(CHANGE))
    assert [t["code"] for t in hook.taken] == ["KV001"]


def test_a_webhook_is_tried_again(hook):
    hook.answers = [503, 429, 500]
    notify.Webhook(hook.url, retry_s=(0.0, 0.0, 0.0)).tell("{}")
    assert (len(hook.taken), hook.asked) == (1, 4)


def test_a_webhook_that_never_takes_it_is_an_error(hook):
    hook.answers = [500] * 9
    with pytest.raises(urllib.error.HTTPError) as error:
        notify.Webhook(hook.url, retry_s=(0.0, 0.0)).tell("{}")
    error.value.close()
    assert (hook.taken, hook.asked) == ([], 3)


def test_a_request_that_is_wrong_is_not_repeated(hook):
    hook.answers = [404, 200]
    with pytest.raises(urllib.error.HTTPError) as error:
        notify.Webhook(hook.url, retry_s=(0.0,)).tell("{}")
    error.value.close()
    assert hook.asked == 1


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://host/x", "host/path", "http://"])
def test_only_http_is_posted_to(url):
    with pytest.raises(UsageError):
        notify.Webhook(url)


def test_the_path_of_a_webhook_is_never_printed(hook):
    assert "secret" not in str(notify.Webhook(hook.url))


def test_a_channel_that_fails_does_not_stop_the_others(hook):
    errors = []
    channels = [notify.Command("false"), notify.Webhook(hook.url)]
    notifier = notify.Notifier(channels, errors.append)
    notifier.tell("{}")
    notifier.close()
    assert hook.taken == [{}]
    assert len(errors) == 1
    assert errors[0].startswith("false: ")


def test_a_channel_that_hangs_does_not_hold_up_the_end():
    class Stuck:
        def __str__(self):
            return "stuck"

        def tell(self, text):
            free.wait()

    free, errors = threading.Event(), []
    notifier = notify.Notifier([Stuck()], errors.append)
    for _ in range(120):  # more than it keeps
        notifier.tell("{}")
    end = threading.Thread(target=notifier.close, args=(0.0,), daemon=True)
    end.start()
    end.join(60)
    assert not end.is_alive()
    assert errors[-1] == "stuck: not every alert was told before the end"
    free.set()


# -- metrics ------------------------------------------------------------------------------


def test_metrics_are_prometheus_text():
    text = render(status())
    assert "loganalyze_kv_usage 0.94\n" in text
    assert "loganalyze_running_requests 35\n" in text
    assert "loganalyze_waiting_requests 115\n" in text
    assert "loganalyze_decode_tokens_per_second 606.88\n" in text
    assert "loganalyze_kv_full_in_seconds 180\n" in text
    assert 'loganalyze_state{state="saturated"} 1\n' in text
    assert 'loganalyze_state{state="healthy"} 0\n' in text
    assert (
        'loganalyze_finding_active{code="KV001",name="kv-saturation",severity="critical"} 1'
        in text
    )
    assert 'loganalyze_findings_total{code="KV001"} 2\n' in text
    for line in text.splitlines():
        assert line.startswith(("# HELP ", "# TYPE ", "loganalyze_"))


def test_a_value_that_is_not_printed_is_left_out():
    text = render(status(now=Now(), active=(), capacity_tokens=None))
    assert "kv_usage" not in text
    assert "running_requests" not in text


def test_metrics_are_served_on_loopback():
    server = Server(0, status)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert b"loganalyze_kv_usage 0.94" in answer.read()
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(f"http://127.0.0.1:{server.port}/")
        assert error.value.code == 404
        error.value.close()
        with pytest.raises(UsageError):
            Server(server.port, status)
    finally:
        server.close()


# -- the view -----------------------------------------------------------------------------


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_view_fits_the_terminal(width):
    lines = follow_text.view(status(), width)
    assert max(map(len, lines)) < width
    text = "\n".join(lines)
    assert "SATURATED" in text
    assert "0.94 full in 3 min" in text
    assert "115" in text
    assert "KV001" in text
    assert "\x1b" not in text


def test_a_sparkline_shows_silence_as_space():
    assert follow_text.spark([0.0, 0.5, None, 1.0], 10, 1.0) == "▁▅ █"
    assert follow_text.spark([1, 2, 3, 4], 2) == "▇█"  # three quarters of eight is the seventh
    assert follow_text.spark([None], 5) == ""
    assert follow_text.spark([1.0], 0) == ""


def test_lines_for_output_that_is_no_terminal():
    assert follow_text.change(CHANGE).startswith("2026-02-24 12:00:00  ■ critical  KV001 ")
    assert "\x1b" not in follow_text.change(CHANGE)
    said = follow_text.values(status())
    assert said == (
        "2026-02-24 12:00:00  ■ saturated  usage 0.94, running 35, waiting 115, 607 token/s, "
        "full in 3 min"
    )


def test_a_change_as_json_is_one_line():
    text = follow_json.change(CHANGE)
    assert "\n" not in text
    assert text.isascii()
    out = json.loads(text)
    assert (out["event"], out["state"], out["was"]) == ("alert", "saturated", "healthy")
    assert out["active"] == ["KV001"]
    assert out["now"]["usage"] == 0.94
    assert out["finding"]["code"] == "KV001"
