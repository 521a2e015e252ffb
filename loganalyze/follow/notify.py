"""Tell others: run a command, post to a URL. Neither may ever hold up the following of a log.

What is told is JSON on the standard input of the command, or in the body of the post. The
command is split into words here and run without a shell, so no text of a log can become code.
"""

from __future__ import annotations

import contextlib
import queue
import shlex
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Protocol
from urllib.parse import urlsplit

from loganalyze.errors import UsageError

#: A command may take this long.
COMMAND_S = 60.0
#: A post may take this long, and is tried again after these waits.
POST_S = 10.0
RETRY_S = (1.0, 2.0, 4.0, 8.0, 16.0)
#: What is told while others are slow is kept, up to so many.
_MAX_QUEUE = 100


class Channel(Protocol):
    """Where something is told; raises OSError or ValueError where that fails."""

    def tell(self, text: str) -> None:
        """Tell one piece of JSON."""


class Command:
    """Runs a command with the JSON on its standard input."""

    def __init__(self, command: str, timeout_s: float = COMMAND_S) -> None:
        try:
            self._words = shlex.split(command)
        except ValueError as error:
            raise UsageError(f"cannot split {command!r}: {error}", hint="check quotes") from error
        if not self._words:
            raise UsageError("the command is empty", hint="name a program")
        self._timeout_s = timeout_s

    def __str__(self) -> str:
        return self._words[0]

    def tell(self, text: str) -> None:
        """Run the command once; its output goes to standard error.

        Raises:
            OSError: it cannot be run, fails, or takes too long.
        """
        try:
            done = subprocess.run(
                self._words,
                input=text.encode(),
                stdout=subprocess.DEVNULL,
                timeout=self._timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise OSError(f"took longer than {self._timeout_s:.0f} s") from error
        if done.returncode:
            raise OSError(f"ended with status {done.returncode}")


class Webhook:
    """Posts the JSON to a URL, again and again until it is taken."""

    def __init__(self, url: str, retry_s: tuple[float, ...] = RETRY_S) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"{url!r} is no http or https URL", hint="such as https://host/path")
        self._url = url
        self._host = parts.hostname
        self._retry_s = retry_s

    def __str__(self) -> str:
        return self._host  # the path of a webhook is often its secret

    def tell(self, text: str) -> None:
        """Post once, or as often as it takes.

        Raises:
            OSError: it was not taken in the end.
        """
        for wait in (*self._retry_s, None):
            try:
                self._post(text)
            except OSError as error:
                final = isinstance(error, urllib.error.HTTPError) and (
                    400 <= error.code < 500 and error.code not in (408, 429)
                )
                if wait is None or final:
                    raise
                time.sleep(wait)
            else:
                return

    def _post(self, text: str) -> None:
        request = urllib.request.Request(
            self._url,
            data=text.encode(),
            headers={"Content-Type": "application/json", "User-Agent": "loganalyze"},
            method="POST",
        )
        with urllib.request.urlopen(request, timeout=POST_S):  # http(s) only, see __init__
            pass


class Notifier:
    """Tells channels one thing after the other, in the background.

    Args:
        channels: where to tell.
        on_error: called with what went wrong, in one line.
    """

    def __init__(self, channels: list[Channel], on_error: Callable[[str], None]) -> None:
        self._on_error = on_error
        self._queues = [self._start(channel) for channel in channels]

    def tell(self, text: str) -> None:
        """Hand over one piece of JSON."""
        for waiting, channel, _ in self._queues:
            try:
                waiting.put_nowait(text)
            except queue.Full:
                self._on_error(f"{channel}: too slow; an alert was dropped")

    def close(self, wait_s: float = 10.0) -> None:
        """Wait until everything was told, but not for ever."""
        end = time.monotonic() + wait_s
        for waiting, _, _ in self._queues:
            with contextlib.suppress(queue.Full):  # it is told below
                waiting.put(None, timeout=max(0.0, end - time.monotonic()))
        for _, channel, thread in self._queues:
            thread.join(max(0.0, end - time.monotonic()))
            if thread.is_alive():
                self._on_error(f"{channel}: not every alert was told before the end")

    def _start(
        self, channel: Channel
    ) -> tuple[queue.Queue[str | None], Channel, threading.Thread]:
        waiting: queue.Queue[str | None] = queue.Queue(_MAX_QUEUE)
        thread = threading.Thread(target=self._work, args=(waiting, channel), daemon=True)
        thread.start()
        return waiting, channel, thread

    def _work(self, waiting: queue.Queue[str | None], channel: Channel) -> None:
        while (text := waiting.get()) is not None:
            try:
                channel.tell(text)
            except (OSError, ValueError) as error:
                self._on_error(f"{channel}: {error}")
