"""Claims of papers: a file of them, what our records say about each, and the commands that make the records."""
