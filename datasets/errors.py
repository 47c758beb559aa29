"""The error that a data set raises."""


class DataError(ValueError):
    """Error about the files of a data set; its message is one line that says what to do."""


__all__ = ["DataError"]
