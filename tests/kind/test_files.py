"""What `tests/kind/run` hands to a cluster: valid, and in agreement with the cases that run there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from epp.cli import _parser
from tests.support.chart import all_of, one, render
from tests.support.cluster import deployed
from tests.support.cluster.engine_host import MODELS
from tests.support.cluster.install import LABELS, RELEASE
from tests.support.manifests import check

FOLDER = Path(__file__).parent
RUN = (FOLDER / "run").read_text()
ENGINES: dict[str, Any] = yaml.safe_load((FOLDER / "engines.yaml").read_text())
VALUES: dict[str, Any] = {
    **yaml.safe_load((FOLDER / "values.yaml").read_text()),
    "provider": {"name": "istio"},
}


def test_the_script_can_be_read() -> None:
    subprocess.run(["bash", "-n", FOLDER / "run"], check=True)


@pytest.mark.parametrize("provider", ["istio", "kgateway"])
def test_an_api_server_would_take_what_is_installed(provider: str) -> None:
    assert f"  {provider})" in RUN
    objects = render({**VALUES, "provider": {"name": provider}}, release=RELEASE)
    for each in (ENGINES, *objects):
        check(each)
    assert {"Gateway", "HTTPRoute", "InferencePool"} <= {each["kind"] for each in objects}


def test_the_script_waits_for_the_names_that_the_chart_gives() -> None:
    objects = render(VALUES, release=RELEASE)
    assert f"helm upgrade -i {RELEASE} charts/epp" in RUN
    for kind in ("Deployment", "Gateway"):
        (found,) = all_of(objects, kind)
        assert f"{kind.lower()}/{found['metadata']['name']} " in RUN
    assert one(objects, "Deployment")["spec"]["replicas"] == 2


def test_the_engines_are_the_pool_s_pods_and_its_image_theirs() -> None:
    objects = render(VALUES, release=RELEASE)
    spec = ENGINES["spec"]["template"]
    (engine,) = spec["spec"]["containers"]
    pool = one(objects, "InferencePool")["spec"]
    assert pool["selector"]["matchLabels"] == spec["metadata"]["labels"] == LABELS
    assert ENGINES["spec"]["selector"]["matchLabels"] == LABELS
    assert ENGINES["metadata"]["name"] == deployed.ENGINES
    assert [each["number"] for each in pool["targetPorts"]] == [
        each["containerPort"] for each in engine["ports"]
    ]
    (picker,) = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert engine["image"] == picker["image"]
    assert f"IMAGE={engine['image']}\n" in RUN


def test_the_engines_arguments_are_those_of_epp_engine() -> None:
    (engine,) = ENGINES["spec"]["template"]["spec"]["containers"]
    program, *words = engine["command"]
    assert program == "epp"
    told = _parser().parse_args([*words, *engine["args"]])
    assert tuple(told.models) == MODELS


def test_the_cases_are_told_where_the_gateway_is() -> None:
    for name in (deployed.PORT, deployed.NAMESPACE, "TEST_KUBECONFIG"):
        assert re.search(rf"\b{name}=", RUN)
