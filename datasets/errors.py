"""The error that a data set raises."""


class DataError(ValueError):
    """A problem with the files of a data set, in one line that says what to do."""


__all__ = ["DataError"]
