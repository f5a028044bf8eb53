"""A standalone trained model: it predicts, and is stored in one file."""

from codedfedl.models.files import load_model, save_model
from codedfedl.models.model import Model

__all__ = ["Model", "load_model", "save_model"]
