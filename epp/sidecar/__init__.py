"""The sidecar of a decode engine: has prompts computed elsewhere, and everything else here.

It stands on the port that the gateway sends to, with the engine behind it on the same host. Where
the picker names a prefill endpoint in a header, the sidecar sends the prompt there first, by the
bodies of `epp.disagg.connectors`, and then the request to its own engine. Whatever goes wrong with
the first leg, the engine computes the prompt itself: a client never notices more than the time.
"""
