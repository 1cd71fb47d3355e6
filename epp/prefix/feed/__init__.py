"""An engine's feed of events: which to take in, what to ask for, and how far to believe it.

A collector has one `sequence.Sequence`, `audit.Audit` and `trust.Confidence` for each rank of
each endpoint, and does as the sequence says: on `Reset` the rank joins the index anew, on `Apply`
the payload is parsed and applied to it, on `Ask` the engine is asked. What the index calls refused, and
whether the engine can be reached, it tells the confidence.
"""
