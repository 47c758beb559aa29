"""Tables and figures from the records of a results folder."""
