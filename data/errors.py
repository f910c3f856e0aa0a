"""The error that people are meant to read."""


class UserError(Exception):
    """An expected failure, told in one or two plain sentences that end with what to do."""


class UsageError(UserError):
    """What was asked for is incomplete or cannot be read: a choice that there is not, a word that is missing."""
