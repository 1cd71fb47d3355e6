"""Where the Go router does harm and this picker does not, each with the test that shows it."""

from __future__ import annotations

import msgspec


class Otherwise(msgspec.Struct, frozen=True):
    """One difference that is on purpose."""

    there: str
    here: str
    test: str  #: file::name, below ``tests/``


OTHERWISE = (
    Otherwise(
        "A request with trailers never ends: Envoy flags no last piece of the body then.",
        "Trailers end the body.",
        "field/test_a_ext_proc.py::test_b005_trailers_end_the_body",
    ),
    Otherwise(
        "A request without a body goes to a random endpoint of the whole pool, whatever the "
        "subset hint says; without endpoints it is answered 500.",
        "It is decided like any other; without endpoints it is answered 503.",
        "unit/extproc/test_session.py::test_a_head_that_ends_the_request_is_decided_at_once",
    ),
    Otherwise(
        "The destination of such a request has no brackets around an IPv6 address.",
        "An address has one spelling, with brackets.",
        "field/test_c_endpoints.py::test_b068_ipv6_has_one_spelling_and_brackets_everywhere",
    ),
    Otherwise(
        "The subset hint's ports are ignored, and IPv6 in brackets never matches.",
        "`host:port` is that port, `host` is all ports of it.",
        "unit/test_router.py::test_candidates",
    ),
    Otherwise(
        "A rewritten body is encoded anew: keys are sorted, integers above 2^53 change.",
        "Only the bytes of the model's name change.",
        "unit/formats/test_splice.py::test_only_the_models_name_changes",
    ),
    Otherwise(
        "All request headers are set again, pseudo headers included.",
        "Only headers that change are set.",
        "unit/extproc/test_session.py::"
        "test_a_picks_headers_are_set_only_where_they_change_something_and_may_be_set",
    ),
    Otherwise(
        "An answer that is no event stream is held in memory until it ends.",
        "Each piece goes on at once.",
        "unit/extproc/test_session.py::test_each_piece_of_a_response_goes_on_at_once",
    ),
    Otherwise(
        "The status of an answer is looked for under `status`, where Envoy does not put it, so "
        "errors of model servers are not counted.",
        "It is read from `:status`.",
        "integration/test_extproc_server.py::test_what_an_exchange_learns_from_its_response",
    ),
    Otherwise(
        "A compressed body on a known path is answered 400.",
        "It is passed on, routed by load.",
        "unit/formats/test_format_set.py::test_a_compressed_body_is_not_decoded",
    ),
    Otherwise(
        "Uploads (audio) were answered 400 up to 0.10.0; their model is not known since.",
        "They are routed, and their model is read.",
        "field/test_b_request_parsing.py::"
        "test_b039_an_audio_upload_is_routed_byte_for_byte_with_its_model",
    ),
    Otherwise(
        "A message of more than 4 MiB breaks the stream unless a flag says otherwise, and a body "
        "has no limit.",
        "Messages are as large as a body may be; larger bodies are answered 413.",
        "integration/test_extproc_server.py::test_a_message_of_20_mib_passes_with_the_default_limits",
    ),
    Otherwise(
        "With its default plugins requests that come between two scrapes see the same loads and go "
        "to the same endpoint.",
        "Each pick is booked before the next request is scored.",
        "field/test_e_scoring.py::test_b086_a_burst_within_one_scrape_interval_spreads_evenly",
    ),
    Otherwise(
        "A load older than 200 ms (four scrape intervals) counts as a full endpoint, so a short "
        "hiccup of scraping looks like a full pool and requests are refused.",
        "A load is old after `--metrics-staleness-threshold` and three misses at least.",
        "unit/collect/test_pace.py::test_a_load_is_stale_after_three_misses_at_least",
    ),
    Otherwise(
        "The headers `x-llm-d-video-fps`, `-duration-seconds` and `-resolution` change the estimate "
        "of a video's tokens.",
        "They are passed on and not read: a video counts as ten seconds at two frames a second.",
        "unit/formats/test_openai.py::"
        "test_a_video_takes_the_same_tokens_whatever_headers_say_of_it",
    ),
    Otherwise(
        "A request that an admitter refuses is answered 500.",
        "It is answered 429.",
        "contract/test_formulas.py::test_probabilistic_admitter_drops_by_the_fifth_power",
    ),
    Otherwise(
        "A client's `x-data-parallel-rank` reaches the engine; of ranks behind one port the engine "
        "chooses one by load.",
        "The client's is removed, and the rank that holds most of the prompt is named.",
        "unit/prefix/test_rank_header.py::test_the_rank_that_told_most_of_the_prompt_is_named",
    ),
    Otherwise(
        "A header that names no profile is answered 429, as if to try again.",
        "It is answered 400.",
        "unit/schedule/test_handlers.py::test_header_handler_answers_400_to_an_unknown_profile",
    ),
    Otherwise(
        "Errors are plain text without a content type, and 429 and 503 say nothing of later.",
        "They are JSON as OpenAI's API has it, with `Retry-After`; `--error-format=text` is theirs.",
        "unit/extproc/test_answers.py::test_a_dropped_request_is_told_why_and_when_to_come_back",
    ),
    Otherwise(
        "With one replica a missing pool or a drain fails liveness, so the pod is restarted.",
        "Liveness depends on nothing but the process.",
        "integration/test_extproc_ports.py::test_liveness_is_serving_whatever_happens",
    ),
    Otherwise(
        "Health is not served on the ext_proc port unless asked for, though Envoy checks it there.",
        "It is served on both ports.",
        "integration/test_extproc_ports.py::test_health_is_served_on_the_ext_proc_port_too",
    ),
    Otherwise(
        "A self-signed certificate has an RSA key of 4096 bits, made at each start.",
        "It has a P-256 key, which takes no time.",
        "unit/process/test_server_tls.py::test_a_self_signed_certificate_is_p_256_and_fits_its_key",
    ),
    Otherwise(
        "The metrics port has a profiler, on by default.",
        "It has none.",
        "integration/test_admin.py::test_there_is_no_profiler",
    ),
    Otherwise(
        "A terminating pod is dropped at once, and what was in flight there is not known any more.",
        "It gets nothing new and keeps its requests until it is gone; so does one that is not "
        "ready for a while.",
        "field/test_c_kubernetes.py::test_b066_a_drained_pod_keeps_its_requests_and_shows_them",
    ),
    Otherwise(
        "The model's name is restored in an answer only where one piece holds it whole.",
        "It is found wherever the answer is cut.",
        "property/test_restore.py::test_names_and_nothing_else_change_wherever_the_answer_is_cut",
    ),
    Otherwise(
        "A weighted rewrite is drawn anew for each request of a session.",
        "A session, by `x-session-id`, keeps its model.",
        "unit/test_rules.py::test_a_session_keeps_its_model",
    ),
    Otherwise(
        "The status of objectives and rewrites is never written.",
        "Those that count get the condition `Accepted`, with what of them does nothing; it needs "
        "the verb `patch` on their `status`.",
        "integration/test_kube_pool.py::test_policies_that_count_say_so_in_their_status",
    ),
)
