"""Reading of an Nsight Systems SQLite export into canonical event tables. All NVIDIA names live in this package."""
