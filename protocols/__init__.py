"""Protocols: declarative plans, training recipes, and tests as pure functions from arrays to tidy rows."""
