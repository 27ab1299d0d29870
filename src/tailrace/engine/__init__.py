"""The engine: one open log in this process, shared by every handle."""
