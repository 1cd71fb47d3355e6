"""A policy against all others, cell by cell: the report of ``docs/policy_report.md``."""
