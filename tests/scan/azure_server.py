"""A small Azure Blob Storage, written after its REST API: what reading a container needs.

It lists a container page by page (one blob a page), gives blobs whole or in part, and checks
each request's shared-key signature, so that a client which signs wrongly is refused.
"""

import base64
import hashlib
import hmac
import http.server
import threading
import urllib.parse
from xml.sax.saxutils import escape

#: The headers that stand in the text to sign, in their order.
_SIGNED = [
    "content-encoding",
    "content-language",
    "content-length",
    "content-md5",
    "content-type",
    "date",
    "if-modified-since",
    "if-match",
    "if-none-match",
    "if-unmodified-since",
    "range",
]
_TIME = "Fri, 20 Nov 2026 10:00:00 GMT"


class BlobServer(http.server.ThreadingHTTPServer):
    """Serves `blobs` (name -> bytes) of one container on loopback; a context."""

    daemon_threads = True

    def __init__(self, account, key, container, blobs):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.account, self.key = account, base64.b64decode(key)
        self.container, self.blobs = container, blobs
        self.root = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error):
        self.shutdown()
        self.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        account, container, *name = urllib.parse.unquote(url.path)[1:].split("/", 2)
        if not self._is_signed(url.path, query):
            self._answer(403)
        elif (account, container) != (self.server.account, self.server.container):
            self._answer(404)
        elif query.get("comp") == "list" and query.get("restype") == "container":
            self._answer(200, self._listing(query), {"Content-Type": "application/xml"})
        elif (blob := self.server.blobs.get("/".join(name))) is None:
            self._answer(404)
        else:
            self._give(blob)

    def _is_signed(self, path, query):
        """Whether the request carries the signature that Azure would have made of it."""
        signed = [self.command, *(self.headers.get(name, "") for name in _SIGNED)]
        signed[3] = "" if signed[3] == "0" else signed[3]
        ours = {k.lower(): v for k, v in self.headers.items() if k.lower().startswith("x-ms-")}
        signed += [f"{name}:{ours[name].strip()}" for name in sorted(ours)]
        signed += [f"/{self.server.account}{path}"]
        signed += [f"{name}:{query[name]}" for name in sorted(query)]
        mac = hmac.new(self.server.key, "\n".join(signed).encode(), hashlib.sha256).digest()
        wanted = f"SharedKey {self.server.account}:{base64.b64encode(mac).decode()}"
        return hmac.compare_digest(wanted, self.headers.get("Authorization", ""))

    def _listing(self, query):
        names = sorted(n for n in self.server.blobs if n.startswith(query.get("prefix", "")))
        at = int(query.get("marker") or 0)
        blobs = "".join(
            f"<Blob><Name>{escape(name)}</Name><Properties>"
            f"<Creation-Time>{_TIME}</Creation-Time><Last-Modified>{_TIME}</Last-Modified>"
            f"<Etag>{_tag(self.server.blobs[name])}</Etag>"
            f"<Content-Length>{len(self.server.blobs[name])}</Content-Length>"
            "<Content-Type>text/plain</Content-Type><BlobType>BlockBlob</BlobType>"
            "</Properties></Blob>"
            for name in names[at : at + 1]
        )
        following = str(at + 1) if at + 1 < len(names) else ""
        return (
            '<?xml version="1.0" encoding="utf-8"?>'
            f'<EnumerationResults ContainerName="{self.server.container}">'
            f"<Blobs>{blobs}</Blobs><NextMarker>{following}</NextMarker></EnumerationResults>"
        ).encode()

    def _give(self, blob):
        said = {"ETag": f'"{_tag(blob)}"', "Last-Modified": _TIME, "x-ms-blob-type": "BlockBlob"}
        wanted = self.headers.get("Range") or self.headers.get("x-ms-range")
        if wanted is None:
            self._answer(200, blob, said)
            return
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        start, end = int(first), min(int(last or len(blob)), len(blob) - 1) + 1
        said["Content-Range"] = f"bytes {start}-{end - 1}/{len(blob)}"
        self._answer(206, blob[start:end], said)

    def _answer(self, status, body=b"", headers=None):
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _tag(blob):
    return f"0x{hashlib.sha256(blob).hexdigest()[:16].upper()}"
