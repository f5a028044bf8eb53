"""What every run has in common, simulated or real: asks, answers, how they are combined, the loop.

A scheme asks (`protocol`); clients do the work (`client`); answers are combined (`aggregate`); the
scheme learns from them and asks again (`drive`); each exchange leaves a record (`record`).
"""
