"""Figures of a results folder; :mod:`~bench.report.figures.registry` lists them."""
