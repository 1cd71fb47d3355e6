"""Prompts that one simulated engine computes and another one decodes, in virtual time."""
