"""A model rewrite is the same edit on the bytes and on what they mean."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from epp.formats.splice import model_span, rewrite_model
from tests.support.arrivals import parsed

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False,
    allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(TEXT | st.just("model"), inner, max_size=3),
    max_leaves=10,
)  # fmt: skip
BODIES = st.dictionaries(TEXT, JSON, max_size=5)


@given(BODIES, BODIES, TEXT.filter(bool), TEXT, st.booleans(), st.sampled_from([None, 1, "\t"]))
def test_one_string_changes(
    before: dict[str, object],
    after: dict[str, object],
    model: str,
    target: str,
    ascii_only: bool,
    indent: int | str | None,
) -> None:
    before.pop("model", None)
    said = {**before, "model": model, **{k: v for k, v in after.items() if k != "model"}}
    body = json.dumps(said, ensure_ascii=ascii_only, indent=indent).encode()
    request = parsed("/v1/novel/completions", body)
    rewritten = rewrite_model(request, target)
    start, end = model_span(body) or (0, 0)
    assert json.loads(body[start:end]) == model
    assert (
        rewritten.body
        == body[:start]
        + json.dumps(target, ensure_ascii=False).encode().replace(b"\x7f", b"\x7f")
        + body[end:]
    )
    assert json.loads(rewritten.body) == {**said, "model": target}
    assert rewritten.prompt == request.prompt


@given(st.binary())
def test_no_bytes_break_the_search(body: bytes) -> None:
    assert model_span(body) is None
