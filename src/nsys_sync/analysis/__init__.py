"""Pure functions on event tables: from calls and GPU activity to ranked sync sites."""
