"""The external program `nsys`: what it writes, and what must be added to its exports."""
