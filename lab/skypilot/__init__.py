"""SkyPilot itself, in an environment of its own, as far as its parsers of command lines and tasks need it."""
