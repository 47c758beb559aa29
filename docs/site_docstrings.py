"""Extension of griffe: docstrings of this project in the form that its parser knows."""

import re

import griffe

_ROLE = re.compile(r":(?:class|func|meth|mod|data|attr):`~?([\w.]+)`")
_EXAMPLE = re.compile(r"^( *)Example:$", re.MULTILINE)


class PlainDocstrings(griffe.Extension):
    """Roles become code, and ``Example:`` becomes the section ``Examples:``."""

    def on_instance(self, *, obj, **_):
        """Change the docstring of an object."""
        if obj.docstring:
            text = _ROLE.sub(lambda match: f"`{match[1].rpartition('.')[2]}`", obj.docstring.value)
            obj.docstring.value = _EXAMPLE.sub(r"\1Examples:", text)
