"""bench: when is a probabilistic image embedding worth it?

Importing this package is cheap on purpose: torch and the other heavy packages load with the parts that need them.
"""

__version__ = "0.1.0"
