"""Data: where points and labels come from, and which client holds which of them."""

from codedfedl.data.dataset import Dataset
from codedfedl.data.loading import load_dataset
from codedfedl.data.partitions import mini_batches, partition

__all__ = ["Dataset", "load_dataset", "mini_batches", "partition"]
