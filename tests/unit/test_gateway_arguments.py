"""The flags of ``epp gateway`` that contradict each other, or are not of their form."""

from __future__ import annotations

import pytest
import yaml

from epp import cli


@pytest.mark.parametrize("mode", ["lean", "stock"])
def test_endpoints_that_nobody_would_read_are_refused(
    mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["gateway", f"--mode={mode}", "--endpoints=127.0.0.1:8000"]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("epp gateway: --endpoints are for --mode=direct and --routing=")


@pytest.mark.parametrize("ways", [["--mode=direct"], ["--routing=override-host"]])
@pytest.mark.parametrize(
    "endpoints",
    ["foo", "http://engine:8000", "engine:0", "engine:65536", ":8000", "::1:8000", "a b:80",
     "10.0.0.1:8000,10.0.0.1:8000", "engine:\u0663"],
)  # fmt: skip
def test_an_endpoint_that_is_no_host_and_port_is_named(
    endpoints: str, ways: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["gateway", *ways, f"--endpoints={endpoints}"]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("epp gateway: --endpoints: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize("ways", [["--mode=direct"], ["--routing=override-host"]])
def test_an_endpoint_may_be_a_name_or_ipv6(
    ways: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["gateway", *ways, "--endpoints=[2001:db8::1]:8000"]) == 0
    assert "address: 2001:db8::1\n" in capsys.readouterr().out
    assert cli.main(["gateway", *ways, "--endpoints=engine-0.models.svc:8000"]) == 0
    assert "address: engine-0.models.svc\n" in capsys.readouterr().out


def test_no_endpoints_where_they_are_needed_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["gateway", "--mode=direct"]) == 2
    assert "--endpoints HOST:PORT,... is needed" in capsys.readouterr().err


def test_each_pool_has_a_route_and_a_cluster_and_the_picker_is_told_which(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["gateway", "--pools=chat,code"]) == 0
    said = yaml.safe_load(capsys.readouterr().out)["staticResources"]
    assert [cluster["name"] for cluster in said["clusters"]] == ["chat", "code", "picker"]
    (chain,) = said["listeners"][0]["filterChains"]
    manager = chain["filters"][0]["typedConfig"]
    (host,) = manager["routeConfig"]["virtualHosts"]
    assert [(each["match"]["prefix"], each["route"]["cluster"]) for each in host["routes"]] == [
        ("/chat/", "chat"),
        ("/code/", "code"),
    ]
    ext_proc = next(f for f in manager["httpFilters"] if f["name"].endswith("ext_proc"))
    assert ext_proc["typedConfig"]["requestAttributes"] == ["xds.cluster_name"]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--pools=a,a"], "stands twice"),
        (["--pools=picker"], "'picker' cannot be"),
        (["--pools=mirror", "--mirror=a:1"], "'mirror' cannot be"),
        (["--pools=A/b"], "'A/b' cannot be"),
        (["--pools=a", "--mode=direct", "--endpoints=a:1"], "needs --mode=lean or stock"),
        (["--pools=a", "--routing=override-host", "--endpoints=a:1"], "--routing=original-dst"),
    ],
)
def test_pools_that_cannot_be_told_apart_or_reached_are_refused(
    flags: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["gateway", *flags]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--pools=a,mirrored"], ["--mode=stock"], []])
def test_every_route_is_copied_to_a_mirror_that_cannot_hold_up_more_than_a_few(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["gateway", "--mirror=shadow:9300", *flags]) == 0
    resources = yaml.safe_load(capsys.readouterr().out)["staticResources"]
    (listener,) = resources["listeners"]
    manager = listener["filterChains"][0]["filters"][0]["typedConfig"]
    for route in manager["routeConfig"]["virtualHosts"][0]["routes"]:
        assert route["route"]["requestMirrorPolicies"] == [{"cluster": "mirror"}]
    (mirror,) = [each for each in resources["clusters"] if each["name"] == "mirror"]
    assert mirror["circuitBreakers"]["thresholds"][0]["maxRequests"] == 128
