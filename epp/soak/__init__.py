"""``epp soak``: many engines that publish KV events, a picker that follows them, and faults.

It answers whether a picker keeps up with a fleet for hours: does it know what engines hold, does its
memory stay flat, does it recover from what is lost? Files: `pods` (a process that plays all the
engines), `seen` (what the picker shows of itself), `run` (the whole of it).
"""
