"""Rigs: what proves by breaking (docs/rigs.md)."""

# The exit code of a rig that lacks something it needs, such as root or Java; what it lacks is on its stderr.
CANNOT_RUN = 77
