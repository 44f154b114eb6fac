"""Every architecture of transformers that can be trained, generated from the library with a shrunken configuration."""
