"""The port on which gateways ask: listeners, certificates, health."""
