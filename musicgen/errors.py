"""The one exception that the command lines turn into a single line without a traceback."""


class UserError(ValueError):
    """A mistake the user can mend. The message says what is wrong, where, and the cure."""
