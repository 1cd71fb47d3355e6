"""Paths of a simulated engine beside inference: about tokens, and about the engine itself."""
