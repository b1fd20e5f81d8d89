"""The two exceptions a user can meet; both are caught in one place, `diagnose.cli.main`."""


class InputError(Exception):
    """The input cannot be used. The message is one line: what is wrong, where, what to do next."""


class UsageError(Exception):
    """The call cannot be carried out as asked. The message is one line: what is wrong, what to do next."""
