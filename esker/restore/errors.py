"""The error of a restore that is refused."""


class RestoreError(Exception):
    """The restore is refused; the message names the remedy. Nothing was overwritten."""
