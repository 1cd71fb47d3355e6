"""The process that serves: its CPU, its garbage, its TLS."""
