"""Field problems of operation: what the chart grants is enough for what the picker holds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import yaml

CHART = Path(__file__).parents[3] / "charts/epp/values.yaml"
GIB = 2**30

FILL = """
import resource
from random import Random

import epp.app
from epp.model import EndpointId
from epp.prefix.approx import ApproxPrefixCacheProducer
from epp.prefix.index import PrefixIndex

params = ApproxPrefixCacheProducer.Params()
index, draw = PrefixIndex(params.lru_capacity_per_server), Random(7)
for pod in range(100):
    for _ in range(11):  # prompts that share nothing, the worst case
        index.learn(EndpointId(f"10.0.0.{pod}:8000"), [draw.getrandbits(64) for _ in range(1000)])
print(index.entries, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def test_b179_a_picker_with_a_full_index_of_100_pods_takes_less_than_its_limit() -> None:
    """Field problem B179: the default chart granted less memory than the process needed."""
    limit = yaml.safe_load(CHART.read_text())["picker"]["resources"]["limits"]["memory"]
    assert limit.endswith("Gi")
    done = subprocess.run(
        [sys.executable, "-c", FILL], capture_output=True, text=True, check=True, timeout=120
    )
    entries, used = map(int, done.stdout.split())
    assert entries == 1_000_000, "it holds no more, whatever 100 pods could"
    assert used < 0.8 * int(limit.removesuffix("Gi")) * GIB
