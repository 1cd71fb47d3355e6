"""Benchmarks: CPU per request of picker and Envoy, and the scheduler alone.

Everything is measured in one run on one machine, so the ratios hold where absolute times do
not. The load client and the model servers are small processes of their own, and their CPU is
not counted; the picker's and Envoy's are read from ``/proc``.
"""
