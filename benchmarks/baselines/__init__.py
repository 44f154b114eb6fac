"""The papers' own searches, as they describe them, to measure zooid's against."""
