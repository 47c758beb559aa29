"""Results that ship with bench: data only, no code."""
