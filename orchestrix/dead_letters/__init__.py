"""Dead letters: collected, kept, and sent again."""
