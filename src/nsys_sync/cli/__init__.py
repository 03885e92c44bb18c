"""The commands, one a file. Only `main` turns errors into exit statuses."""
