"""A trained model that stands alone: it predicts, and lies in one file."""

from codedfedl.models.files import load_model, save_model
from codedfedl.models.model import Model

__all__ = ["Model", "load_model", "save_model"]
