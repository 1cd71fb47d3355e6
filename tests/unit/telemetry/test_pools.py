"""One page of a process's counts and its pools'."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from epp.errors import NoEndpoints, UnknownPool
from epp.telemetry.metrics import Metrics

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def series(metrics: Metrics) -> Series:
    metrics.refresh()
    page = metrics.render()[0].decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def of_a_process(**pools: Metrics) -> Metrics:
    metrics = Metrics(process=False)
    metrics.watch_pools(lambda: pools)
    return metrics


def test_a_pools_counts_have_its_name_and_the_processs_have_none() -> None:
    chat, code = Metrics(process=False), Metrics(process=False)
    both = of_a_process(chat=chat, code=code)
    chat.refused(NoEndpoints("none"))
    both.refused(UnknownPool("which?"))
    name, reason = "epp_refused_requests_total", ("reason", "rejected-no-endpoints")
    found = series(both)
    assert found[name, (("inference_pool", "chat"), reason, ("status", "503"))] == 1.0
    assert found[name, (("reason", "rejected-unknown-pool"), ("status", "404"))] == 1.0
    assert not any(dict(labels).get("inference_pool") == "code" and value
                   for (_, labels), value in found.items())  # fmt: skip


def test_what_only_a_process_has_is_there_once() -> None:
    both = of_a_process(chat=Metrics(process=False))
    both.live("epp_leader", lambda: 1.0)
    found = series(both)
    assert [key for key in found if key[0] == "epp_leader"] == [("epp_leader", ())]
    assert len([key for key in found if key[0] == "llm_d_epp_info"]) == 1


def test_a_label_that_names_the_pool_already_is_not_added() -> None:
    chat = Metrics(process=False)
    chat.live("llm_d_epp_ready_endpoints", lambda: {("chat",): 3.0})
    found = series(of_a_process(chat=chat))
    assert found["llm_d_epp_ready_endpoints", (("name", "chat"),)] == 3.0
    assert found["inference_pool_ready_pods", (("name", "chat"),)] == 3.0


def test_a_pool_that_goes_takes_its_series_along() -> None:
    pools = {"chat": Metrics(process=False)}
    both = Metrics(process=False)
    both.watch_pools(lambda: pools)
    pools["chat"].reloaded(ok=True)
    assert ("epp_config_current", (("inference_pool", "chat"),)) in series(both)
    pools.clear()
    assert not any("chat" in dict(labels).values() for _, labels in series(both))
