"""What papers published and claim: planned, run and judged by records, next to the published numbers."""
