"""Repair on disk: what each partition has and should have, and the steps from one to the other."""
