"""``x-epp-decision``: who is told why an endpoint was picked."""

from __future__ import annotations

from pathlib import Path

import pytest

from epp.clock import ManualClock
from epp.errors import ConfigError
from epp.ledger import Ledger
from epp.model import Pick
from epp.observe.header import DecisionHeader, key_of
from epp.observe.receipts import Receipts
from tests.support import build

A = build.endpoint("a")
KEY = b"0123456789abcdef"


def told(shown: dict[str, str], key: bytes) -> bool:
    receipts, pick = Receipts(1, Ledger(), ManualClock(1.0)), Pick((A,))
    request = build.request(headers=shown)
    receipts.decided(request, pick, {})
    found = DecisionHeader(receipts, key).answer_headers(request, pick, "")
    assert set(found) <= {"x-epp-decision"}
    return found.get("x-epp-decision", "").startswith(f"picked={A.address};")


def test_all_are_told_where_there_is_no_key() -> None:
    assert told({}, b"")


@pytest.mark.parametrize("shown", ["", "0123456789abcdeF", "0123456789abcdef0", "\udcff"])
def test_with_a_key_those_that_do_not_show_it_are_told_nothing(shown: str) -> None:
    assert told({"x-epp-decision": KEY.decode()}, KEY)
    assert not told({"x-epp-decision": shown} if shown else {}, KEY)


def test_a_key_that_cannot_be_read_or_is_short_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "key"
    with pytest.raises(ConfigError, match="--decision-key-file"):
        key_of(str(file))
    file.write_bytes(b"short\n")
    with pytest.raises(ConfigError, match="at least 16 bytes, this one 5"):
        key_of(str(file))
    file.write_bytes(KEY + b"\n")
    assert key_of(str(file)) == KEY
