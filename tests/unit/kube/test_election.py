"""What an election does by itself, without a server."""

from __future__ import annotations

import asyncio

import pytest

from epp.errors import ConfigError
from epp.kube.client import Kube
from epp.kube.lease import Candidate, Election, own_identity
from epp.kube.lease_record import LeaseTimes
from tests.support.kube import FakeKube


def test_an_identity_names_the_pod_and_is_never_used_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_NAME", "epp-0")
    first, second = own_identity(), own_identity()
    assert first.startswith("epp-0_")
    assert first != second


def test_a_lease_lies_where_kubernetes_keeps_them() -> None:
    candidate = Candidate("serving", "epp", "me")
    assert candidate.path == "/apis/coordination.k8s.io/v1/namespaces/serving/leases/epp"


def test_before_it_runs_it_does_not_lead_and_knows_no_holder() -> None:
    election = Election(Kube(FakeKube().access()), Candidate("serving", "epp", "me"))
    assert not election.leads
    assert election.holder == ""


def test_times_by_which_two_could_lead_are_refused_at_once() -> None:
    times = LeaseTimes(lease=10, renew=10)
    election = Election(Kube(FakeKube().access()), Candidate("serving", "epp", "me", times))
    with pytest.raises(ConfigError, match="renew deadline"):
        asyncio.run(election.run())
