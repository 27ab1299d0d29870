"""Real Spark jobs that are killed: at every point of a commit, at random, and on a cluster."""
