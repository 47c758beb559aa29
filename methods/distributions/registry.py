"""Table of the distributions that have an array form: kind to the module of this folder that defines it."""

MODULES = {
    "point": "normal",
    "rated_point": "normal",
    "isotropic_normal": "normal",
    "diagonal_normal": "normal",
    "von_mises_fisher": "von_mises_fisher",
}
