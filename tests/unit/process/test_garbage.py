"""Collecting garbage seldom, for a while."""

from __future__ import annotations

import gc

import pytest

from epp.process import garbage


def test_collections_are_as_before_when_what_was_to_be_fast_is_over() -> None:
    before = gc.get_threshold()
    with garbage.seldom():
        assert gc.get_threshold() == garbage.THRESHOLDS
    assert gc.get_threshold() == before


def test_collections_are_as_before_after_an_error() -> None:
    before = gc.get_threshold()
    with pytest.raises(RuntimeError, match="broken"), garbage.seldom():
        raise RuntimeError("broken")
    assert gc.get_threshold() == before
