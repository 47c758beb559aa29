"""Tables and figures of the papers: planned, run, and printed next to the published numbers."""
