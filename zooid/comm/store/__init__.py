"""Messages as objects: for ranks that accept no connections. All that they share is a folder of an object store."""
