"""Real federations on Flower: the same schemes, with messages in place of a virtual clock.

What a client computes (`node`), what it may send (`checks`), what the server remembers
(`codedfedl.runs.journal`) and the driver (`server`) know nothing of Flower; `wire`, `collect`
and the two apps do. `local` starts a whole federation on one machine.
"""
