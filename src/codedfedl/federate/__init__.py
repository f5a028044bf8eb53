"""Real federations: the same schemes, with messages in place of a virtual clock.

What a client does (`node`), and what the server asks, checks and remembers (`server`,
`codedfedl.runs.journal`), depend on no engine, only on a `transport`. `flower` is the one that
crosses a network; `MemoryTransport` is for tests and for trying things out.
"""
