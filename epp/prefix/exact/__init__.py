"""What engines say of their KV caches, as an index: which endpoint holds which blocks.

`index.ExactIndex` is the whole of it for readers.
"""
