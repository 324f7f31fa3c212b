"""What is wrong with the chat part of an experiment."""

from mtrl_cli.errors import UsageError


class ChatConfigError(UsageError):
    """A tokenizer, renderer or tool that cannot be used as configured."""
