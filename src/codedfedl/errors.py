"""The one error that a user's input can cause."""


class InputError(ValueError):
    """Input that cannot be used: its message names the field, the value and the remedy."""
