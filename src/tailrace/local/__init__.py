"""The local backend: a log in a directory, opened by this process."""
