"""Doctor: finds what is wrong, and says what helps."""
