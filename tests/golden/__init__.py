"""Golden logs: directories that a released format version wrote, and that every later version has to open."""
