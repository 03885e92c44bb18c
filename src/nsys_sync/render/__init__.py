"""Analysis in, text or bytes out. Nothing here reads a trace, prints, or writes a file."""
