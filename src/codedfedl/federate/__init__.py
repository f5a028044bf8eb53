"""Real federations: the same schemes, with messages in place of a virtual clock.

What a client does (`node`), what it may send (`checks`), what the server remembers
(`codedfedl.runs.journal`) and the runtime (`runtime`) depend on no engine, only on a `transport`.
`flower` is the one that crosses a network; `memory` is for tests and for trying things out.
"""
