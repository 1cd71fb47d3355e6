"""Replay: the requests of a trace, sent to a gateway with made-up text that shares what they share."""
