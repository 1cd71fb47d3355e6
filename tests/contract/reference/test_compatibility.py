"""What is said of the Go router's plugins, flags and metrics is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from epp import cli
from epp.reference import compatibility, fields, go_router
from epp.reference.compatibility import REFUSES, UNKNOWN, Status, flag, status
from epp.reference.otherwise import OTHERWISE, Otherwise

TESTS = Path(__file__).resolve().parents[2]
TYPES = [type_ for types in go_router.PLUGINS.values() for type_ in types]


@pytest.mark.parametrize(
    ("type_", "said"),
    [
        ("queue-scorer", Status("supported")),
        (
            "load-aware-scorer",
            Status(
                "supported, with a difference",
                "there, an endpoint whose queue is not known scores 0.5; here 0.0",
            ),
        ),
        (
            "prefill-header-handler",
            Status("accepted, does nothing", "the profile handler sets the headers itself"),
        ),
        (
            "dcgm-data-source",
            Status(REFUSES, "GPU metrics of NVIDIA's exporter are not scraped yet"),
        ),
        ("no-such-plugin", Status(UNKNOWN)),
    ],
)
def test_what_becomes_of_a_type(type_: str, said: Status) -> None:
    assert status(type_) == said


def test_an_older_type_is_what_it_is_read_as() -> None:
    assert status("prefix-disaggregation-decider").word == (
        "read as `prefix-based-pd-decider`: supported"
    )


def test_an_older_type_that_becomes_two_is_supported_if_both_are() -> None:
    assert status("precise-prefix-cache-scorer").word == (
        "read as `prefix-cache-scorer`, `precise-prefix-cache-producer`: supported"
    )


@pytest.mark.parametrize("type_", TYPES)
def test_every_type_of_the_go_router_is_known(type_: str) -> None:
    assert status(type_).word != UNKNOWN


def test_no_type_is_listed_twice() -> None:
    assert len(TYPES) == len(set(TYPES))


@pytest.mark.parametrize("name", go_router.FLAGS)
def test_the_command_line_takes_every_flag_that_is_said_to_be_taken(name: str) -> None:
    values = {"zap-encoder": "json", "model-server-metrics-scheme": "http", "tls-min-version": ""}
    default = go_router.FLAGS[name]
    value = values.get(name, default if default.endswith("s") else "1")
    argument = f"--{name}={value}" if len(name) > 1 else f"-{name}={value}"
    cli._parser().parse_args(["serve", argument])
    assert flag(name)[0] != UNKNOWN


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("grpc-port", ("works", "")),
        ("health-checking", ("works", "the default here is true")),
        ("enable-pprof", ("accepted, ignored",
                          "there is no profiler on the metrics port; no warning for `false`")),
        ("model-server-metrics-path", ("works, deprecated", "use path of metrics-data-source")),
        ("zap-log-level", ("mapped", "sets `-v`")),
        ("no-such-flag", (UNKNOWN, "")),
    ],
)  # fmt: skip
def test_what_becomes_of_a_flag(name: str, said: tuple[str, str]) -> None:
    assert flag(name) == said


def test_our_own_flags_are_flags() -> None:
    (line,) = re.findall(r"^Not in the Go router: (`--.*)\.$", compatibility.page(), re.MULTILINE)
    known = vars(cli._parser().parse_args(["serve"]))
    assert {name.replace("-", "_") for name in re.findall(r"`--([a-z-]+)`", line)} <= known.keys()


def test_a_metric_stands_with_its_older_name_and_the_older_labels() -> None:
    assert (
        "| `llm_d_epp_per_endpoint_queue_size` | gauge | name, model_server_endpoint "
        "| `inference_pool_per_pod_queue_size` | name, model_server_pod |"
    ) in compatibility.page()


def test_no_metric_under_the_go_routers_prefix_is_ours() -> None:
    ours = compatibility.page().split("Not in the Go router:\n")[1]
    assert "llm_d_epp_" not in ours


@pytest.mark.parametrize("each", OTHERWISE, ids=lambda each: each.test.rpartition("::")[2])
def test_what_we_do_otherwise_is_shown_by_a_test(each: Otherwise) -> None:
    file, _, name = each.test.partition("::")
    assert f"def {name}(" in (TESTS / file).read_text()


@pytest.mark.parametrize(
    ("path", "word", "note"),
    [
        ("flowControl.enableEviction", "accepted, ignored", "flow control is not supported yet"),
        ("flowControl.priorityBands[].maxBytes", "accepted, ignored",
         "flow control is not supported yet"),
        ("flowControl.saturationDetector.pluginRef", "works",
         "decides whether sheddable requests are dropped"),
        ("dataLayer.peerDiscovery.pluginRef", "accepted, ignored with a warning",
         "--peers says where other pickers are"),
        ("dataLayer.sources[].extractors[].pluginRef", "works", ""),
        ("featureGates[]", "works", ""),
    ],
)  # fmt: skip
def test_what_becomes_of_a_field(path: str, word: str, note: str) -> None:
    assert (f"`{path}`", word, note) in fields.fields()


def test_every_section_and_gate_has_its_rows() -> None:
    text = fields.section()
    for name in ("plugins[]", "schedulingProfiles[]", "dataLayer", "flowControl", "requestHandler"):
        assert f"| `{name}." in text
    for name in ("flowControl", "haPopulateNonLeaderDatastore", "dataLayer"):
        assert f"| gate `{name}`" in text
    for name in ("data", "parser", "saturationDetector"):
        assert f"| `{name}` (older) | translated |" in text
