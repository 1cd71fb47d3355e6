"""Reading InferencePools of both versions, and ports given on the command line."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from epp.collect.parse.inference_pools import parse_ports, read_pool
from tests.support.pods import alpha_pool, inference_pool


def test_a_v1_pool_names_labels_and_ports_in_order() -> None:
    spec = read_pool(inference_pool(labels={"app": "x", "tier": "y"}, ports=(8001, 8000)))
    assert (spec.ports, spec.problem) == ((8001, 8000), "")
    assert spec.chooses({"app": "x", "tier": "y", "more": "z"})
    assert not spec.chooses({"app": "x"})
    assert not spec.chooses({"app": "x", "tier": "other"})


def test_an_alpha_pool_has_a_flat_selector_and_one_port() -> None:
    spec = read_pool(alpha_pool(labels={"matchLabels": "a label's odd name"}, port=9000))
    assert spec.ports == (9000,)
    assert spec.chooses({"matchLabels": "a label's odd name"})


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (None, "selector"),
        ({}, "selector"),
        ({"selector": None}, "selector"),
        ({"selector": {}, "targetPorts": [{"number": 1}]}, "selector"),
        ({"selector": {"matchLabels": {}}}, "selector"),
        ({"selector": {"matchLabels": {"a": "b"}}}, "port"),
        ({"selector": {"matchLabels": {"a": "b"}}, "targetPorts": []}, "port"),
        ({"selector": {"matchLabels": {"a": "b"}}, "targetPorts": None}, "port"),
        ({"selector": {"matchLabels": {"a": "b"}}, "targetPorts": [None, {"number": 0}]}, "port"),
    ],
)
def test_a_pool_that_lacks_something_has_no_endpoints_and_says_why(spec: Any, problem: str) -> None:
    found = read_pool({"metadata": {"name": "p"}, "spec": spec})
    assert problem in found.problem
    assert not found.ports or not found.chooses({})


def test_a_pool_without_a_picker_reference_is_whole() -> None:
    manifest = inference_pool()
    del manifest["spec"]["endpointPickerRef"]
    manifest["spec"]["appProtocol"] = None
    whole = msgspec.structs.replace(read_pool(inference_pool()), picker_port=0, protocol="")
    assert read_pool(manifest) == whole


def test_ports_are_read_in_order() -> None:
    assert parse_ports("8001, 8000") == (8001, 8000)


@pytest.mark.parametrize("text", ["", "x", "0", "65536", "8000,8000", "1,2,3,4,5,6,7,8,9"])
def test_ports_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="port"):
        parse_ports(text)
