"""The error that people are meant to read."""


class UserError(Exception):
    """An expected failure, told in one or two plain sentences that end with what to do."""
