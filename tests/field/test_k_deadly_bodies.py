"""Field problem B205: small bodies that crash or stall a process. ijl/orjson#458, CVE-2024-27454.

Each body is read in a process of its own, so that a crash is seen, with a bound on its CPU time.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

CPU_SECONDS = 1.0

READ = """
import sys, time
from epp.errors import BadRequest
from epp.formats import FormatSet
from epp.formats.splice import rewrite_model
from epp.model import Arrival
from epp.prefix.blocks import block_hashes
formats = FormatSet()
worst = 0.0
for path, body in BODIES:
    headers = {":path": path, "content-type": "application/json"}
    start = time.process_time()
    try:
        request = formats.parse(Arrival("1", headers, body), 0.0)
        block_hashes(request.prompt, root=0)
        rewrite_model(request, "other")
        said = request.unread or "read"
    except BadRequest:
        said = "400"
    spent = time.process_time() - start
    worst = max(worst, spent)
    print(path, said, round(spent, 3), file=sys.stderr)
print(worst)
"""

#: Python expressions, made in the other process; F is the field they stand in.
VALUES = {
    "a million brackets": "b'[' * 1_000_000",
    "brackets that close": "b'[' * 500_000 + b']' * 500_000",
    "100,000 nested objects": """b'{"a":' * 100_000 + b'1' + b'}' * 100_000""",
    "ten megabytes of digits": "b'1' * 10_000_000",
    "a fraction of ten megabytes": "b'1.' + b'1' * 10_000_000 + b'e5'",
    "an endless exponent": "b'1e' + b'9' * 1_000_000",
    "a million keys": """b'{' + b','.join(b'"k%d":1' % i for i in range(1_000_000)) + b'}'""",
    "a million equal keys": """b'{' + b','.join([b'"k":1'] * 1_000_000) + b'}'""",
    "three million lists": "b'[' + b'[],' * 3_000_000 + b'[]]'",
    "a million objects": "b'[' + b'{},' * 1_000_000 + b'{}]'",
    "a million parts": """b'[{"role":"user","content":[' + b'{"text":"a"},' * 700_000 + b'{}]}]'""",
    "a million strings": """b'[' + b'"a",' * 2_000_000 + b'"a"]'""",
    "two million ids": "b'[' + b'1,' * 2_000_000 + b'1]'",
    "ten megabytes of text": """b'"' + b'a' * 10_000_000 + b'"'""",
    "ten megabytes of escapes": """b'"' + b'\\\\u00e9' * 1_700_000 + b'"'""",
    "a lone surrogate": """b'"\\\\ud800"'""",
    "a NUL": """b'"a\\\\u0000b"'""",
    "a bare NUL": """b'"a\\x00b"'""",
    "no UTF-8": """b'"\\xff\\xfe"'""",
    "results in results": (
        """b'[{"role":"user","content":' + b'[{"type":"tool_result","content":' * 300"""
        """ + b'"' + b'a' * 5_000_000 + b'"' + b'}]' * 300 + b'}]'"""
    ),
}
FIELDS = {
    "/v1/chat/completions": ("messages", "model", "tools", "unknown", "stream", "max_tokens"),
    "/v1/completions": ("prompt", "cache_salt"),
    "/v1/responses": ("input", "instructions"),
    "/v1/messages": ("messages", "system"),
    "/v1/embeddings": ("input",),
    "/v1/rerank": ("documents",),
    "/inference/v1/generate": ("token_ids", "features"),
}


def worst_cpu(bodies: str) -> float:
    done = subprocess.run(
        [sys.executable, "-c", f"BODIES = {bodies}\n{READ}"],
        capture_output=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    print(done.stderr.decode())
    return float(done.stdout)


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES.keys())
def test_b205_a_deadly_value_in_any_field(value: str) -> None:
    places = [(path, field) for path, fields in FIELDS.items() for field in fields]
    bodies = (
        f"[(path, b'{{\"' + field.encode() + b'\":' + value + b'}}') "
        f"for value in [{value}] for path, field in {places!r}]"
    )
    assert worst_cpu(bodies) < CPU_SECONDS


def test_b205_a_deadly_body() -> None:
    assert (
        worst_cpu(f"[('/v1/chat/completions', body) for body in [{', '.join(VALUES.values())}]]")
        < CPU_SECONDS
    )
