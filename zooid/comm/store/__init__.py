"""Messages as objects, for ranks that accept no connections and share only a folder of an object store."""
