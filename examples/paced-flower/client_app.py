"""A client: one pass of SGD over its own images. `timed` is all that pacing adds."""

import time

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from network import network, read
from torch.nn.functional import cross_entropy

from codedfedl.pacing.flower import timed

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train from the model of the message."""
    node = context.node_config
    if msg.content["config"]["server-round"] == node["silent-round"]:
        time.sleep(float(node["silent-seconds"]))
    model, data = network(), read(str(node["data"]))
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = timed(msg, torch.utils.data.DataLoader(data, batch_size=32, shuffle=True))
    for images, labels in batches:
        optimiser.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimiser.step()
        time.sleep(float(node["pause"]))  # a slow processor
    metrics = MetricRecord({"num-examples": len(data), **batches.metrics})
    arrays = ArrayRecord(model.state_dict())
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)
