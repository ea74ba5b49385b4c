"""Validation: finds mistakes in what an author wrote, and explains each in a sentence."""
