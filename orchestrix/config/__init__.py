"""Configuration: the settings, where they come from, and whether they fit together."""
