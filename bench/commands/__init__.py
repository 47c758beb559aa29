"""Commands: the options and the body of each, together. Heavy imports wait until a command runs."""
