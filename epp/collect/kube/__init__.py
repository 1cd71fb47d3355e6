"""Endpoints, objectives and model rewrites from a Kubernetes cluster."""
