"""Real power cuts: what a file system sends to its disk is recorded, and the disk is put back to many points of it."""
