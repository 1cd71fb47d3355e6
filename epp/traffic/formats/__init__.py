"""Formats of traces: text to records and back. Pure; `epp.traffic.files` opens the files."""
