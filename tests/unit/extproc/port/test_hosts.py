from __future__ import annotations

import pytest

from epp.extproc.port.hosts import foreign

OURS = ("models.example.org", "*.Pool.example.org")


@pytest.mark.parametrize(
    ("authority", "is_foreign"),
    [
        ("models.example.org", False),
        ("Models.Example.org:8080", False),
        ("a.pool.example.org", False),
        ("a.b.pool.example.org:80", False),
        ("pool.example.org", True),
        ("models.example.org.evil.net", True),
        ("api.provider.example", True),
        ("[::1]:80", True),
        ("", True),
    ],
)
def test_a_host_is_ours_by_its_name_or_as_one_below(authority: str, is_foreign: bool) -> None:
    assert foreign(OURS)({":authority": authority}) is is_foreign


def test_an_address_is_a_host_too() -> None:
    is_foreign = foreign(("[::1]", "127.0.0.1"))
    for authority in ("[::1]", "[::1]:80", "127.0.0.1:80"):
        assert not is_foreign({":authority": authority})


def test_without_names_every_request_is_ours() -> None:
    assert not foreign(())({})
