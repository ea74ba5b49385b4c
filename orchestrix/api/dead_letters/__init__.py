"""Dead letters: messages that could not be handled."""
