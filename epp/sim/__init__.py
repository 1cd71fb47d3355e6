"""A simulated model server: its pure core in virtual time, and the same behind real HTTP."""
