"""What works on the running program, without nsys."""
