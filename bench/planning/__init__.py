"""From a request to plans: layers of settings, merged once, give specifications with ids."""
