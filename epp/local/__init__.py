"""Child processes on this machine: an Envoy, engines and a picker to look at."""
