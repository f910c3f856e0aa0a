"""Commands: each turns arguments into calls of the packages below."""

__version__ = "0.1.0"
