"""Which names of models are adapters', as engines list them."""

from __future__ import annotations

import pytest

from epp.collect.parse.models import MOST_NAMES, listed
from epp.model import EndpointId
from epp.prefix.feed.names import Listed, ModelNames

A, B = EndpointId("a"), EndpointId("b")
ONE = Listed(frozenset({"base", "alias"}), frozenset({"adapter"}))

PAGE = b"""{"object": "list", "data": [
  {"id": "tiny", "object": "model", "owned_by": "vllm", "root": "/m", "parent": null},
  {"id": "lora-a", "object": "model", "root": "/l", "parent": "tiny", "permission": []},
  {"id": "bare"}]}"""


def test_what_has_a_parent_on_the_page_is_an_adapter() -> None:
    assert listed(PAGE) == Listed(frozenset({"tiny", "bare"}), frozenset({"lora-a"}))


@pytest.mark.parametrize("page", [b"", b"[]", b'{"data": [{"parent": "x"}]}', b"\xff", b"<html>"])
def test_a_page_that_lists_nothing_is_refused(page: bytes) -> None:
    with pytest.raises(ValueError, match="models: "):
        listed(page)


def test_a_page_of_very_many_names_is_refused() -> None:
    page = b'{"data": [' + b",".join([b'{"id": "m"}'] * (MOST_NAMES + 1)) + b"]}"
    with pytest.raises(ValueError, match="16385 are listed"):
        listed(page)


def test_an_adapter_is_its_own_root_and_every_served_name_is_the_base_models() -> None:
    names = ModelNames()
    names.told(A, ONE)
    roots = [names.root_of(name) for name in ("adapter", "base", "alias", "")]
    assert roots == ["adapter", "", "", ""]


def test_a_name_that_no_list_has_is_not_known() -> None:
    names = ModelNames()
    names.told(A, ONE)
    names.told(B, None)
    assert names.root_of("loaded just now") is None


def test_nothing_is_known_until_the_first_answer_and_where_nobody_lists_all_are_base_models() -> (
    None
):
    names = ModelNames()
    assert names.root_of("name") == ""  # nobody is asked
    names.asked(A)
    names.asked(B)
    assert names.root_of("name") is None
    names.told(A, None)  # B is down, and may stay so
    assert names.root_of("name") == ""


def test_what_an_endpoint_listed_holds_until_it_lists_something_else_or_is_gone() -> None:
    names = ModelNames()
    names.told(A, ONE)
    names.told(A, None)
    assert names.root_of("adapter") == "adapter"
    names.told(A, Listed(frozenset({"base"}), frozenset({"other"})))
    assert [names.root_of(name) for name in ("adapter", "other")] == [None, "other"]
    names.told(B, ONE)
    names.forget(A)
    assert [names.root_of(name) for name in ("adapter", "other")] == ["adapter", None]
    names.forget(B)
    assert names.root_of("adapter") == ""
