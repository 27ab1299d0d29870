"""Salvage: the readable contents of damaged files; used by recovery and by repair."""
