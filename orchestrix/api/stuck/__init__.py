"""Stuck: the instances of all sagas that an operator should look at."""
