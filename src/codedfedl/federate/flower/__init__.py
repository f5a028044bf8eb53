"""The transport on Flower: messages, the two apps, keys, and a federation on one machine.

Nothing else in the package knows this engine.
"""
