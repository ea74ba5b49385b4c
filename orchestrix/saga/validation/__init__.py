"""Validation: finds what an author wrote that cannot work, and says it in a sentence."""
