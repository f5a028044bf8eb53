"""Deadlines, loads and weights for other people's training loops: arrivals in, a deadline out.

The core needs NumPy alone, and no engine. `codedfedl.pacing.flower` paces a Flower app in one line.
"""

from codedfedl.pacing.pacer import Pacer
from codedfedl.pacing.rounds import NodeReply, Round, RoundPlan

__all__ = ["NodeReply", "Pacer", "Round", "RoundPlan"]
