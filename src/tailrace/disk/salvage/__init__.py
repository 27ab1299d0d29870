"""Salvage: what damaged files still hold; used by recovery and by repair."""
