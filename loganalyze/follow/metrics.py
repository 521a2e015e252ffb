"""The derived state as Prometheus metrics, on the loopback interface only."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from loganalyze.errors import UsageError
from loganalyze.follow import StatusLine

_STATES = ("waiting", "undetermined", "healthy", "degraded", "saturated", "idle", "silent")


def render(status: StatusLine) -> str:
    """Return the metrics in Prometheus' text format 0.0.4.

    Values that the log does not print are left out, never 0.
    """
    return "\n".join(_lines(status)) + "\n"


def _lines(status: StatusLine) -> Iterator[str]:
    now = status.now
    gauges = (
        ("kv_usage", "Usage of the fullest KV pool, as a fraction.", now.usage),
        ("running_requests", "Running requests, all ranks.", now.running),
        ("waiting_requests", "Waiting requests, all ranks.", now.waiting),
        ("decode_tokens_per_second", "Decode throughput, all ranks.", now.rate),
        (
            "decode_tokens_per_second_per_request",
            "Decode throughput of one running request.",
            now.rate_per_req,
        ),
        ("kv_full_in_seconds", "Seconds until the KV pool is full, at this pace.", now.full_in_s),
        ("kv_capacity_tokens", "Size of the KV pool of one rank.", status.capacity_tokens),
    )
    for name, text, value in gauges:
        if value is not None:
            yield from _head(name, text, "gauge")
            yield f"loganalyze_{name} {value:.10g}"
    yield from _head("state", "1 for the present state, 0 for the others.", "gauge")
    for state in _STATES:
        yield f'loganalyze_state{{state="{state}"}} {int(status.state == state)}'
    yield from _head("finding_active", "1 for each finding that is raised.", "gauge")
    for finding in status.active:
        labels = f'code="{finding.code}",name="{finding.name}",severity="{finding.severity}"'
        yield f"loganalyze_finding_active{{{labels}}} 1"
    yield from _head("findings_total", "How often each finding was raised.", "counter")
    for code, count in sorted(status.raised.items()):
        yield f'loganalyze_findings_total{{code="{code}"}} {count}'
    yield from _head("lines_total", "Lines read.", "counter")
    yield f"loganalyze_lines_total {status.lines}"


def _head(name: str, text: str, kind: str) -> Iterator[str]:
    yield f"# HELP loganalyze_{name} {text}"
    yield f"# TYPE loganalyze_{name} {kind}"


class Server:
    """Serves `/metrics` on 127.0.0.1.

    Args:
        port: where to listen; 0 takes any free port.
        status: gives the present state; called from another thread.
    """

    def __init__(self, port: int, status: Callable[[], StatusLine]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path.split("?")[0] != "/metrics":
                    self.send_error(404)
                    return
                body = render(status()).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                """Say nothing: the terminal is in use."""

        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or error
            raise UsageError(f"port {port}: {why}", hint="--metrics takes a free port") from error
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
