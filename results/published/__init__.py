"""Numbers published with the papers, as tidy CSV files."""
