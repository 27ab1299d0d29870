"""Everything that must survive a power cut."""
