"""The version of this zooid, where every room can read it."""

VERSION = "0.2.0"
