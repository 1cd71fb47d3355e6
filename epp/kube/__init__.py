"""Speaking to a Kubernetes API server: access, calls, copies that follow it, and leadership."""
