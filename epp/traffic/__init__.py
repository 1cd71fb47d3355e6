"""Traffic: workloads, a client that measures, and the figures of a run."""
