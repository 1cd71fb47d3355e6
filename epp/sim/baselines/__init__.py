"""Policies of other routers as plugins, each after its published formula: what ours is held against."""
