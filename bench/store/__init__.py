"""The results folder: what units are (``specs``), what came of them (``records``), and where both are kept."""
