"""Makes simulated engines as fast as measured ones."""
