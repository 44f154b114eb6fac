"""The version of zooid."""

VERSION = "0.2.0"
