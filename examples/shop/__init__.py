"""A tea shop's day on Tailrace: what ./demo shows."""
