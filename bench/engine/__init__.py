"""Planning, tuning, training, testing: composes methods, datasets and protocols."""
