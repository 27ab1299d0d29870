"""Consumer groups: members that share partitions, the cursors they store, and their administration."""
