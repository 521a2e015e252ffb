"""What a file without an SGLang line is, and what to do then."""

from __future__ import annotations

import re

from loganalyze.sources import Source, head_of

#: Looked at of a file.
_HEAD = 1 << 16
_OTHER_SERVER = "this tool reads SGLang's logs only"
_OWN_LOG = "pass the server's own log"
_NOT_STARTED = "the server did not start, or its log was not reached; the text says why"

#: What a text may be, told by its first lines; the first that fits. The logs of other servers
#: hold tracebacks and access lines, too.
_KINDS = (
    (r"\A\s*<\?xml[^>]*>\s*<Error>", "an error of a storage service", "download the log again"),
    (r"\A\s*<(?i:!doctype|html)", "a web page", "download the raw log"),
    (r"\A\s*<(?:\?xml|\w+[ >:/])", "XML", _OWN_LOG),
    (
        r"\Aversion https://git-lfs",
        "a pointer of Git LFS",
        "fetch the file that it names with `git lfs pull`",
    ),
    (r"(?m)^# (?:HELP|TYPE) \w", "metrics", "this tool reads the server's log, not its /metrics"),
    (
        r"(?m)^(?:LAST SEEN +TYPE|NAME(?:SPACE)? +(?:NAME +)?READY)|^Name: .*\nNamespace:"
        r"|^apiVersion: |\"apiVersion\"",
        "what kubectl says of objects",
        "`kubectl logs POD` gives the server's log, with --previous that of one that died",
    ),
    (
        r"(?m)^(?:srun|slurmstepd): ",
        "Slurm's own messages",
        "pass the file that the job's output goes to",
    ),
    (
        r"(?m)^(?:Error from server|error: |docker: |Error response from daemon"
        r"|(?:ba|z)?sh: |usage: |[\w./-]+: error: )",
        "an error message of a command",
        _NOT_STARTED,
    ),
    (
        r"Serving Benchmark Result|\"request_throughput\"|\"mean_ttft_ms\"",
        "results of a benchmark",
        "pass the log of the server that it measured",
    ),
    (r"(?i:\bvllm\b)|Avg prompt throughput: |GPU KV cache usage: ", "a vLLM log", _OTHER_SERVER),
    (
        r"(?i:\b(?:text[-_]generation[-_](?:launcher|router)|lmdeploy|ollama|llama\.cpp|tritonserver"
        r"|TRT-LLM|TensorRT-LLM)\b)|\bggml_\w|\bllama_\w+: |slot launch_slot_|llama runner"
        r"|GRPCInferenceService",
        "a log of another inference server",
        _OTHER_SERVER,
    ),
    (r"\"traceEvents\"", "a profiler's trace", _OWN_LOG),
    (r"NVIDIA-SMI", "output of nvidia-smi", _OWN_LOG),
    (r"(?m)^(?:Collecting|Requirement already satisfied:) ", "output of pip", _OWN_LOG),
    (
        r"sglang_router|\bsmg::|sgl_model_gateway",
        "a log of SGLang's router",
        "the router prints no statistics; pass the log of a server behind it",
    ),
    (
        r"server_args=|Init torch distributed|Load weight (?:begin|end)|fired up and ready",
        "an SGLang log without statistics lines",
        "statistics are printed at --log-level info, from the first request on",
    ),
    (
        r"\"(?:GET|POST|PUT|DELETE|HEAD) \S+ HTTP/[0-9.]+\" [0-9]{3} (?:[0-9]+|-) \"",
        "an nginx access log",
        "pass the server's own standard error",
    ),
    (
        r"(?m)^\[\S+Z\] \"[A-Z]+ \S+ HTTP/[0-9.]+\" [0-9]{3}|^[\d/]{10} [\d:]{8} \[[a-z]+\] \d+#",
        "a proxy's log",
        "pass the server's own standard error",
    ),
    (
        r"INFO: +\S+ - \"(?:GET|POST) ",
        "a server's standard output without its standard error",
        "SGLang prints statistics to standard error: capture both (2>&1)",
    ),
    (
        r"(?m)^\[20[0-9]{2}-[0-9]{2}-[0-9]{2} [0-9:]{8}(?: [A-Z_]+[0-9]+)*\] ",
        "an SGLang log without statistics lines",
        "statistics are printed at --log-level info, from the first request on",
    ),
    (r"\ATraceback |\n  File \"", "a Python traceback", "pass the whole log of the server"),
    (r"(?m)\A(?:\[ *[0-9]+\.[0-9]{6}\] .*\n){2}", "a kernel log", _OWN_LOG),
    (
        r"\A(?:[A-Z][a-z]{2} [ 0-9][0-9] [0-9:]{8} \S+ \S+: .*\n){2}",
        "a system's journal",
        "`journalctl -u UNIT` gives the lines of the server's unit",
    ),
    (
        r"\A#!|\A(?:#include|package |import \w|from \w+ import )|(?m:^(?:def|class) \w+.*:$)",
        "source code or a script",
        "pass what the server prints when it runs",
    ),
    (r"\A\s*[\[{](?s:.*)[\]}]\s*\Z", "JSON", "pass the server's log, or its messages one a line"),
    (r"\A\s*[{\[]\s*(?:\"|[{\]}])", "JSON", "pass the server's log, or its messages one a line"),
    (
        r"\A(?:---\n)?(?:[\w.-]+:(?: .*)?\n(?:[ -].*\n)*){2}|\A(?:---\n)?[\w.-]+:\n {1,4}[\w-]+:",
        "YAML",
        _OWN_LOG,
    ),
    (r"\A#{1,3} \w|(?m:^```)", "a Markdown document", _OWN_LOG),
)


def of_other_server(source: Source) -> bool:
    """Whether a log is another inference server's, by its first lines."""
    return guess(source)[1] == _OTHER_SERVER


def guess(source: Source) -> tuple[str, str]:
    """Guess what a log is that holds no SGLang line.

    Returns:
        What it looks like, for "looks like ...", and what to do.
    """
    return guess_head(head_of(source, _HEAD))


def guess_head(first: bytes) -> tuple[str, str]:
    """Guess it from the first bytes of a log: see `guess`."""
    head = first[:_HEAD].decode("utf-8", "replace")
    if "\0" in head and not head.strip("\0\n"):
        return "NUL bytes", "an empty archive, or a log cut off while it was written"
    if not head.strip("\0 \r\n\t"):
        return "blank lines", "did the server write to another file?"
    for pattern, what, hint in _KINDS:
        if re.search(pattern, head):
            return what, hint
    if _is_table(head):
        return "a CSV table", _OWN_LOG
    return "other text", "pass the server's own log; `loganalyze formats` lists what is read"


def _is_table(head: str) -> bool:
    """Whether the first lines have as many cells each, none of them a sentence."""
    lines = [line for line in head.split("\n")[:20] if line.strip()]
    cells = [line.split(",") for line in lines]
    same = len(lines) > 1 and len({len(row) for row in cells}) == 1
    return same and len(cells[0]) > 2 and all(len(c.split()) < 4 for c in cells[0])
