"""Fuzzing of everything that is decoded from disk: bytes that nobody wrote, behind checksums that are right."""
