"""Rigs: what proves by breaking. docs/rigs.md says which one proves what."""
