"""Plug-ins of tests: the templates that ``bench new`` writes, with passages replaced."""

from bench.commands.new import write_template

PLAIN = """from bench.methods import CosineClassifier, Method, register


@register
class Mine(Method):
    name = "mine"
    summary = "normalised softmax at a fixed temperature"

    def objective(self, num_classes, dim, base=None):
        return CosineClassifier(num_classes, dim, scale=12.0)
"""
"""A method of the fewest lines."""


def template(folder, kind, name, *changes):
    """Text of a template, with the first occurrence of each passage replaced."""
    path = folder / "template.py"
    path.unlink(missing_ok=True)
    write_template(kind, name, path)
    return changed(path.read_text(), *changes)


def changed(text, *changes):
    """A text with the first occurrence of each passage replaced."""
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    return text


def method_of_cloud(folder):
    """A method whose distribution is one of its own."""
    method = template(folder, "method", "mine").replace("IsotropicNormal", "Cloud")
    method = method.replace("from bench.methods.distributions import Cloud\n", "")
    return template(folder, "distribution", "cloud") + method.replace("distribution.variance", "distribution.scale")


def written(folder, text, name="mine.py"):
    """File of a plug-in."""
    path = folder / name
    path.write_text(text)
    return path
