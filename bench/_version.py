"""The version, in a module of its own: whoever reads it depends on nothing else of the package."""

__version__ = "0.1.0"
