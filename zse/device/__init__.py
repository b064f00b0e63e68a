"""The hardware, asked in one place."""
