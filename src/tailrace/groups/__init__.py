"""Groups: members that share partitions, the cursors they store, and what an operator sees of them."""
