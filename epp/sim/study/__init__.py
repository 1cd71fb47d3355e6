"""Studies with the simulator: policies cell by cell, published benchmarks, traces there and back."""
