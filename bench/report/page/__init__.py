"""The page of a report: one HTML file that needs no network, and no JavaScript to be read."""
