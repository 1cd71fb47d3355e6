"""One gateway per mode, shared by the tests that leave it as they found it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.stack import Stack


@pytest.fixture(scope="session", params=["lean", "stock"])
def shared_stack(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    with Stack(tmp_path_factory.mktemp(request.param), mode=request.param, backends=3) as stack:
        yield stack


@pytest.fixture
def stack(shared_stack: Stack) -> Iterator[Stack]:
    """A gateway whose picker must hold nothing after the test, nor have failed in it."""
    yield shared_stack
    shared_stack.wait_idle()
    assert "unexpected" not in shared_stack.picker.tail()
