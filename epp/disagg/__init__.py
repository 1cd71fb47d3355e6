"""Prefill on one endpoint, decode on another, the KV cache moved between them.

`connectors` writes the bodies of the two legs, `strip` removes what clients may not say about them.
"""
