"""The result of a check in each format: one module a format, `words` what they have in common."""
