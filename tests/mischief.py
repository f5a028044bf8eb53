"""A Flower client app for tests: node-000 is honest, the others are not.

It is copied into an app folder of its own, and wraps the real client.
"""

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from codedfedl.federate.flower.apps import answer
from codedfedl.federate.flower.wire import pack, question_of, unpack
from codedfedl.federate.node.node import QUESTIONS
from codedfedl.federate.transport import Answered

app = ClientApp()

HUGE = 100_000_000  # numbers of an answer that is still uploading at the deadline


def spoilt(name: str, kind: str, asked: int, given: Answered) -> Answered:
    """Return another answer than the honest one."""
    facts, arrays = given
    if name == "node-002" and kind == "parity":
        return facts, {key: np.concatenate([array, array]) for key, array in arrays.items()}
    if name != "node-001" or kind != "gradient":
        return given
    gradient = arrays["gradient"]
    wrong: list[Answered] = [
        (facts, {"gradient": gradient * np.float32(np.nan)}),
        (facts, {"gradient": gradient[1:]}),
        (facts, {"gradient": gradient.astype(np.float64)}),
        (facts, {"gradient": -2 * gradient}),
        ({**facts, "round": asked - 1}, arrays),
        ({**facts, "points": facts["points"] - 1}, arrays),
    ]
    if asked < len(wrong):
        return wrong[asked]
    if asked == len(wrong):
        huge = np.random.default_rng(0).random(HUGE, dtype=np.float32)  # equal chunks travel once
        return facts, {"gradient": gradient, "huge": huge}
    return given


def misbehave(message: Message, context: Context) -> Message:
    """Answer as the real client, and spoil it."""
    asked, _ = unpack(message.content)
    given = unpack(answer(message, context).content)
    if question_of(message) == "work":
        name = str(context.node_config["name"])
        given = spoilt(name, asked["work"]["kind"], asked["round"], given)
    return Message(pack(*given), reply_to=message)


for _question in QUESTIONS:
    app.query(_question)(misbehave)
