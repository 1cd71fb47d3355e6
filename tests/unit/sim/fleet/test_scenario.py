"""Scenarios are read strictly, and errors name the place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from epp.errors import ConfigError
from epp.sim.demand.traffic import hurried
from epp.sim.fleet.scenario import Add, Burst, Crash, read_scenario, scenario_of


def test_parts_that_are_not_told_have_defaults():
    scenario = scenario_of("traffic: {preset: chat}")
    assert scenario.fleet[0].count == 8
    assert scenario.pickers.replicas == 1
    assert scenario.policy == "default"


def test_changes_are_told_by_what_they_do():
    scenario = scenario_of(
        "traffic: {preset: chat}\n"
        "changes: [{do: crash, at: 5, pods: 2}, {do: add, at: 9, group: 0}]"
    )
    assert scenario.changes == (Crash(at=5, pods=2), Add(at=9))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("trafic: {preset: chat}", "did you mean `traffic`"),
        ("traffic: {preset: chat, files: [a]}", "one of files, preset and model"),
        ("traffic: {}", "not none"),
        ("traffic: {preset: chat}\npickers: {replicas: 33}", "$.pickers.replicas"),
        ("traffic: {preset: chat, seconds: .inf}", "$.traffic.seconds"),
        ("traffic: {preset: chat, rate: .nan}", "$.traffic.rate"),
        ("traffic: {preset: chat, rate: -1}", "$.traffic.rate"),
        ("fleet: [{count: 0}]", "$.fleet[0].count"),
        ("fleet: [{count: two}]", "$.fleet[0].count"),
        ("fleet: [{speed: .inf}]", "$.fleet[0].speed"),
        ("changes: [{do: crash, at: .inf}]", "$.changes[0].at"),
        ("traffic: {preset: chat}\nfleet: [{max_num_seqs: 9000}]", "$.fleet[0]"),
        ("traffic: {preset: chat}\nchanges: [{do: add, at: 1, group: 3}]", "$.changes[0].group"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(text: str, said: str):
    with pytest.raises(ConfigError) as told:
        scenario_of(text, "a.yaml")
    assert said in str(told.value)
    assert str(told.value).startswith("a.yaml: ")


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match=r"nowhere\.yaml"):
        read_scenario("nowhere.yaml")


def test_traffic_goes_by_faster_in_a_burst_and_is_ahead_afterwards():
    burst = Burst(at=10, seconds=5, times=3)
    assert hurried(10, [burst]) == 10
    assert hurried(13, [burst]) == 11  # three seconds of traffic in one
    assert hurried(25, [burst]) == 15
    assert hurried(26, [burst]) == 16


def test_the_documented_scenarios_can_be_read():
    text = (Path(__file__).parents[4] / "docs/simulator.md").read_text()
    scenarios = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert len(scenarios) == 2
    for each in scenarios:
        scenario_of(each)
